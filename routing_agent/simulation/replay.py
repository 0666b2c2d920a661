"""`python -m routing_agent replay`: a trace over simulated replicas, policy by policy."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

import msgspec

from routing_agent.core.choose import POLICIES
from routing_agent.simulation import replay_page, results
from routing_agent.simulation.fleet_replay import FleetReplay, Progress, ReplayPlan
from routing_agent.simulation.flights import Flight
from routing_agent.simulation.knowledge import KnowledgeName
from routing_agent.simulation.profiles import DEFAULT_PROFILE, PROFILES, Profile, prefill_only
from routing_agent.simulation.traces.model import Trace, TraceError
from routing_agent.simulation.traces.reading import FORMATS, read_trace
from routing_agent.wire import PolicyName, PoolSettings

PLAIN: Final = "prefill-only"
DEFAULT_CACHE_BLOCKS: Final = 2000
DEFAULT_BLOCK_TOKENS: Final = 512
RECORDED: Final = "recorded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `replay`."""
    parser.add_argument("trace", type=Path, help="file or folder of a trace")
    parser.add_argument("--replicas", type=_from(1), default=8, help="default 8")
    parser.add_argument(
        "--policy", default="all", help=f"one, several with commas, or all: {', '.join(POLICIES)}"
    )
    parser.add_argument(
        "--knowledge",
        choices=get_args(KnowledgeName),
        default="agent",
        help="agent (default): own charges and scrapes; oracle: each engine exactly",
    )
    parser.add_argument("--agents", type=_from(1), default=1, help="agents that share the traffic")
    parser.add_argument(
        "--profile",
        choices=(PLAIN, *sorted(PROFILES)),
        default=PLAIN,
        metavar="NAME",
        help=f"{PLAIN} (default): prompts one after the other, answers cost nothing; or an engine: "
        + ", ".join(sorted(PROFILES)),
    )
    parser.add_argument("--prefill-rate", type=_positive, help="prompt tokens/s of a replica")
    parser.add_argument("--cache-blocks", type=_from(1), help="KV blocks of a replica")
    parser.add_argument(
        "--block-tokens",
        type=_from(1),
        help=f"default {DEFAULT_BLOCK_TOKENS}; an engine's own where no prompt shares anything",
    )
    parser.add_argument(
        "--utilisation",
        type=_utilisation,
        default=0.7,
        help="scales arrivals: all prompts uncached would be this share of capacity (default 0.7); "
        f"{RECORDED}: as they came",
    )
    parser.add_argument(
        "--bind-ahead",
        type=_positive,
        help="hold requests back while each replica has prompts for so many seconds ahead",
    )
    parser.add_argument("--ring-bound", type=_positive, help="load bound of consistent_hash")
    parser.add_argument("--format", choices=FORMATS, help="if it cannot be told from the name")
    parser.add_argument("--limit", type=_from(1), help="only so many first requests")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same result")
    parser.add_argument("--json", action="store_true", help="results as a JSON array")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a page of charts")


def main(args: argparse.Namespace) -> int:
    """Replay and print; 2 if the trace or an option makes no sense."""
    try:
        policies = _policies(args.policy)
        trace = read_trace(args.trace, format=args.format, seed=args.seed, limit=args.limit)
        profile = profile_of(args, is_sharing=trace.block_tokens is not None)
        trace = trace.with_block_tokens(profile.block_tokens)
        plan = _plan(args, profile)
        if args.html is not None:
            replay_page.need_plotly()
    except (TraceError, ValueError, replay_page.PlotlyMissing) as problem:
        print(f"replay: {problem}", file=sys.stderr)
        return 2
    if args.utilisation is not None:
        capacity = profile.prefill_tokens_per_s * args.replicas
        trace = trace.with_utilisation(args.utilisation, capacity)
    runs = [_run(plan, policy, trace) for policy in policies]
    _show(args, trace, runs)
    return 0 if args.html is None or _wrote_page(args, trace, runs) else 1


@dataclass(frozen=True, slots=True)
class Run:
    """One policy, replayed."""

    result: results.Result
    answers: results.Answers | None
    flights: Sequence[Flight]
    cpu_s: float


def profile_of(args: argparse.Namespace, *, is_sharing: bool) -> Profile:
    """Give the engine that the options describe; raises `ValueError` if there can be none.

    An engine's own blocks of 16 tokens are a long list where prompts share prefixes, and nearly
    free where nothing is known of that.
    """
    if args.profile == PLAIN:
        return prefill_only(
            args.prefill_rate or PROFILES[DEFAULT_PROFILE].prefill_tokens_per_s,
            kv_blocks=args.cache_blocks or DEFAULT_CACHE_BLOCKS,
            block_tokens=args.block_tokens or DEFAULT_BLOCK_TOKENS,
        )
    profile = PROFILES[args.profile]
    usual = DEFAULT_BLOCK_TOKENS if is_sharing else profile.block_tokens
    block_tokens = args.block_tokens or usual
    kv_blocks = args.cache_blocks or profile.kv_capacity_tokens // block_tokens
    return replace(
        profile,
        prefill_tokens_per_s=args.prefill_rate or profile.prefill_tokens_per_s,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        context_tokens=kv_blocks * block_tokens,  # a replay knows no limit but the KV cache
    )


def _plan(args: argparse.Namespace, profile: Profile) -> ReplayPlan:
    settings = PoolSettings()
    if args.ring_bound is not None:
        if args.ring_bound < 1:
            raise ValueError("--ring-bound must be at least 1: no replica can be under the mean")
        settings = msgspec.structs.replace(settings, ring_bound=args.ring_bound)
    if args.bind_ahead is not None:
        settings = msgspec.structs.replace(settings, bind_ahead_s=args.bind_ahead)
    return ReplayPlan(
        replicas=args.replicas,
        profile=profile,
        settings=settings,
        knowledge=args.knowledge,
        agents=args.agents,
        seed=args.seed,
        prefill_only=args.profile == PLAIN,
    )


def _policies(text: str) -> list[PolicyName]:
    if text == "all":
        return list(POLICIES)
    names = text.split(",")
    for name in names:
        if name not in POLICIES:
            raise ValueError(f"there is no policy {name!r}; known: all, {', '.join(POLICIES)}")
    return [policy for name in names for policy in POLICIES if policy == name]


def _run(plan: ReplayPlan, policy: PolicyName, trace: Trace) -> Run:
    began_s = time.process_time()
    settings = msgspec.structs.replace(plan.settings, policy=policy)
    replay = FleetReplay(replace(plan, settings=settings))
    flights = replay.run(trace.requests, _progress(policy, len(trace.requests)))
    return Run(
        results.summarize(policy, flights, plan.replicas),
        None if plan.prefill_only else results.answers_of(flights),
        flights,
        time.process_time() - began_s,
    )


def _progress(policy: str, total: int) -> Progress | None:
    """Give what draws a progress bar, where somebody looks."""
    if not sys.stderr.isatty():
        return None
    step = max(total // 50, 1)

    def draw(done: int) -> None:
        if done % step == 0 or done == total:
            bar = "#" * (done * 30 // total)
            end = "\r" + " " * 70 + "\r" if done == total else ""
            print(f"\r{policy:16} [{bar:30}] {done:,} of {total:,}", end=end, file=sys.stderr)

    return draw


def _show(args: argparse.Namespace, trace: Trace, runs: Sequence[Run]) -> None:
    if args.json:
        rows = [run.result for run in runs]
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        print(_heading(args, trace))
        print("\n".join(_table(runs)))


def _wrote_page(args: argparse.Namespace, trace: Trace, runs: Sequence[Run]) -> bool:
    pages = [(run.result, run.flights) for run in runs]
    text = replay_page.page(_heading(args, trace), pages, args.replicas)
    try:
        args.html.write_text(text, encoding="utf-8")
    except OSError as problem:
        print(f"replay: {args.html}: {problem.strerror}", file=sys.stderr)
        return False
    print(f"charts: {args.html}", file=sys.stderr)
    return True


def _heading(args: argparse.Namespace, trace: Trace) -> str:
    load = "as recorded" if args.utilisation is None else f"{args.utilisation:.0%} uncached"
    words = (
        f"{trace.name}: {len(trace.requests):,} requests in {trace.duration_s:,.1f} s, "
        f"{args.replicas:,} replicas ({args.profile}), load {load}, knowledge {args.knowledge}, "
        f"{args.agents} agent{'s' if args.agents > 1 else ''}, seed {args.seed}."
    )
    return f"{words}\n{trace.note}".strip()


def _table(runs: Sequence[Run]) -> list[str]:
    has_answers = any(run.answers is not None for run in runs)
    head = ["policy", "hits %", "busiest/mean", "TTFT mean s", "P50", "P90", "P99", "shed", "CPU s"]
    if has_answers:
        head += ["TPOT P50 ms", "P99", "preemptions"]
    rows = [head, *(_row(run) for run in runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(run: Run) -> list[str]:
    result = run.result
    ttfts = (result.ttft_mean_s, result.ttft_p50_s, result.ttft_p90_s, result.ttft_p99_s)
    row = [result.policy, f"{result.hit_rate:.1%}".rstrip("%"), _figure(result.balance)]
    row += [*(_figure(ttft) for ttft in ttfts), str(result.shed), f"{run.cpu_s:.1f}"]
    if run.answers is not None:
        row += [_ms(run.answers.tpot_p50_s), _ms(run.answers.tpot_p99_s)]
        row.append(str(run.answers.preemptions))
    return row


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1000:.1f}"


def _from(least: int) -> Callable[[str], int]:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return whole_number


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return value


def _utilisation(text: str) -> float | None:
    return None if text == RECORDED else _positive(text)
