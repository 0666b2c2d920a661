"""Every policy on real traces: hits, balance and times to first token, by replay.

The traces are the folder `traces` of the sample data, or the one given. Each is replayed whole and,
as a check on what was chosen by looking at it, its second half alone, which nothing was tuned on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from routing_agent.core.choose import POLICIES
from routing_agent.simulation.fleet_replay import FleetReplay, ReplayPlan
from routing_agent.simulation.knowledge import KnowledgeName
from routing_agent.simulation.profiles import prefill_only
from routing_agent.simulation.results import Result, summarize
from routing_agent.simulation.traces.model import Trace, TraceError, in_order
from routing_agent.simulation.traces.reading import read_trace
from routing_agent.wire import PolicyName, PoolSettings

FOLDER: Final = Path(__file__).resolve().parents[2] / "shared" / "traces"
BLOCK_TOKENS: Final = 512

# Name, path below the folder, prompt tokens/s of a replica, which part of it. At 8 replicas the
# rates make recorded times 70 % of what could be computed without any cache.
TRACES: Final = {
    "conversation": ("mooncake/conversation_trace.jsonl", 7300.0, 0.0),
    "conversation-held-out": ("mooncake/conversation_trace.jsonl", 7300.0, 0.5),
    "synthetic": ("mooncake/synthetic_trace.jsonl", 8500.0, 0.0),
    "synthetic-held-out": ("mooncake/synthetic_trace.jsonl", 8500.0, 0.5),
    "agents": ("agentic_claude_code", 7300.0, 0.0),
}
VIEWS: Final[dict[str, tuple[KnowledgeName, int]]] = {
    "oracle": ("oracle", 1),
    "agent": ("agent", 1),
    "4-agents": ("agent", 4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One table: a trace on a fleet, seen by somebody."""

    trace: str
    replicas: int
    cache_blocks: int
    view: str
    utilisation: float
    bind_ahead_s: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER, help="of the traces")
    parser.add_argument("--traces", default=",".join(TRACES), help="default: all")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default: all")
    parser.add_argument("--replicas", default="4,8,16,100", help="default 4,8,16,100")
    parser.add_argument("--cache-blocks", default="2000,5000", help="of 512 tokens, a replica")
    parser.add_argument("--views", default=",".join(VIEWS), help="default: all")
    parser.add_argument(
        "--utilisation", default="0.7", help="all prompts uncached, of capacity (default 0.7)"
    )
    parser.add_argument(
        "--bind-ahead", type=float, default=0.0, help="late binding: seconds (default 0: none)"
    )
    parser.add_argument(
        "--spread",
        type=float,
        default=0.0,
        help="spread arrivals by chance over so many seconds of the trace: what rounded them",
    )
    parser.add_argument("--limit", type=int, help="only so many first requests of each")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same result")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(args: argparse.Namespace) -> int:
    """Replay and print; 2 if there is no such trace, policy or view."""
    try:
        policies = _names(args.policies, POLICIES)
        cells = list(_cells(args))
        traces = {name: _trace(args, name) for name in _names(args.traces, TRACES)}
    except (TraceError, ValueError, OSError) as problem:
        print(f"bin/bench routing: {problem}", file=sys.stderr)
        return 2
    found: list[dict[str, Any]] = []
    for cell in cells:
        began = time.process_time()
        results = [_replayed(cell, traces[cell.trace], policy, args.seed) for policy in policies]
        if args.json:
            found += [_row(cell, result) for result in results]
        else:
            print(table(cell, results), f"({time.process_time() - began:.1f} s of CPU)\n", sep="\n")
    if args.json:
        print(json.dumps(found, indent=1))
    return 0


def table(cell: Cell, results: Sequence[Result]) -> str:
    """Show what each policy came to, one row each."""
    head = (
        f"{cell.trace}, {cell.replicas} replicas, {cell.cache_blocks:,} blocks, {cell.view}, "
        f"{cell.utilisation:.0%} uncached"
    )
    lines = [head, f"{'policy':16} hits %  busiest/mean  TTFT mean     P50     P90     P99  s"]
    for one in results:
        ttfts = (one.ttft_mean_s, one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s)
        shown = "".join(f"{value or 0:8.3f}" for value in ttfts)
        lines.append(
            f"{one.policy:16} {one.hit_rate:6.1%}  {one.balance or 0:12.2f}   {shown}"
            + (f"  shed {one.shed}" if one.shed else "")
        )
    return "\n".join(lines)


def _cells(args: argparse.Namespace) -> Iterator[Cell]:
    for trace in _names(args.traces, TRACES):
        for replicas in _numbers(args.replicas):
            for blocks in _numbers(args.cache_blocks):
                for view in _names(args.views, VIEWS):
                    for share in args.utilisation.split(","):
                        yield Cell(
                            trace=trace,
                            replicas=int(replicas),
                            cache_blocks=int(blocks),
                            view=view,
                            utilisation=float(share),
                            bind_ahead_s=args.bind_ahead,
                        )


def _trace(args: argparse.Namespace, name: str) -> Trace:
    path, _, begin = TRACES[name]
    trace = read_trace(args.folder / path, format=None, seed=args.seed, limit=None)
    requests = trace.requests[int(len(trace.requests) * begin) :][: args.limit]
    if args.spread:
        chance = random.Random(args.seed)
        late = [replace(one, at_s=one.at_s + args.spread * chance.random()) for one in requests]
        requests = in_order(late)
    first_s = requests[0].at_s if requests else 0.0
    moved = tuple(replace(request, at_s=request.at_s - first_s) for request in requests)
    return replace(trace, requests=moved).with_block_tokens(BLOCK_TOKENS)


def _replayed(cell: Cell, trace: Trace, policy: str, seed: int) -> Result:
    rate = TRACES[cell.trace][1]
    knowledge, agents = VIEWS[cell.view]
    name = msgspec.convert(policy, PolicyName)
    plan = ReplayPlan(
        replicas=cell.replicas,
        profile=prefill_only(rate, kv_blocks=cell.cache_blocks, block_tokens=BLOCK_TOKENS),
        settings=PoolSettings(policy=name, bind_ahead_s=cell.bind_ahead_s),
        knowledge=knowledge,
        agents=agents,
        seed=seed,
        prefill_only=True,
    )
    scaled = trace.with_utilisation(cell.utilisation, rate * cell.replicas)
    return summarize(policy, FleetReplay(plan).run(scaled.requests), cell.replicas)


def _row(cell: Cell, result: Result) -> dict[str, Any]:
    return {name: getattr(cell, name) for name in cell.__slots__} | msgspec.to_builtins(result)


def _names(text: str, known: Any) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {name!r}; known: {', '.join(known)}")
    return names


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]
