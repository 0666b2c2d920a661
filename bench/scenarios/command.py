"""What a fleet lives through, replayed: our policies, their figures, a chart of each.

    bin/bench scenarios --charts docs/charts

A prefix that a thousand sessions share, a fleet that grows and shrinks, a replica at a third of its
speed, a flood of prompts that nobody else has, an agent that just started. Agents know what they
know live; the same seed gives the same figures. `--live` sends the same requests at the same times
through our agent to simulated engines, all of them processes, and shows beside it what a replay
makes of exactly that.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.machine import progress
from bench.scenarios.chart import svg
from bench.scenarios.figures import Part, Told, told
from bench.scenarios.plans import QUICK, SCENARIOS, Scenario, Times
from routing_agent.simulation.fleet_replay import FleetReplay
from routing_agent.wire import PolicyName

POLICIES: Final[tuple[PolicyName, ...]] = ("expected_ttft", "consistent_hash", "least_tokens")
REPLICAS: Final = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    names = ", ".join(one.name for one in SCENARIOS)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help=names)
    parser.add_argument("--seed", type=int, default=0, help="of the agents' chance")
    parser.add_argument("--quick", action="store_true", help="a third of the time")
    parser.add_argument("--charts", type=Path, metavar="FOLDER", help="write an SVG for each")
    parser.add_argument("--live", action="store_true", help="by processes, not replayed")
    parser.add_argument("--speed", type=float, default=2.0, help="live: engines and traffic, "
                        "times the replay's; default 2")  # fmt: skip
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=POLICIES)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(args: argparse.Namespace) -> int:
    """Replay and print; 2 if there is no such scenario."""
    unknown = set(args.only) - {one.name for one in SCENARIOS}
    if unknown:
        known = ", ".join(one.name for one in SCENARIOS)
        print(f"bin/bench scenarios: no {', '.join(unknown)}; known: {known}", file=sys.stderr)
        return 2
    times = QUICK if args.quick else Times()
    found: dict[str, list[Told]] = {}
    for scenario in SCENARIOS:
        if not args.only or scenario.name in args.only:
            found[scenario.name] = list(_told(scenario, times, args))
            if args.charts is not None:
                args.charts.mkdir(parents=True, exist_ok=True)
                shown = times.shortened(args.speed) if args.live else times
                picture = svg(scenario.title, shown, found[scenario.name])
                (args.charts / f"{scenario.name}.svg").write_text(picture, encoding="utf-8")
    if args.json:
        print(json.dumps(msgspec.to_builtins(found), indent=1))
    else:
        print(table(found, has_work=args.live))
    return 0


def _told(scenario: Scenario, times: Times, args: argparse.Namespace) -> Iterator[Told]:
    if not args.live:
        yield from replayed(scenario, times, args.seed, args.policies)
        return
    from bench.scenarios.live import lived, replayed_beside

    for policy in args.policies:
        progress(f"{scenario.name}: {policy}")
        yield lived(scenario, times, policy, REPLICAS, args.speed)
        yield replayed_beside(scenario, times, policy, REPLICAS, args.speed)


def replayed(
    scenario: Scenario, times: Times, seed: int = 0, policies: Sequence[PolicyName] = POLICIES
) -> Iterator[Told]:
    """Give what each policy makes of a scenario."""
    course = scenario.course(times, REPLICAS)
    for policy in policies:
        flights = FleetReplay(course.plan(policy, seed)).run(course.requests)
        yield told(policy, course, times, flights)


def table(found: dict[str, list[Told]], *, has_work: bool = False) -> str:
    """Show mean, P50 and P99 of the time to the first token, hits and moves of each stretch.

    Of what was lived live also the busiest replica's work over the mean, before the moves.
    """
    lines = [
        "| scenario | policy | steady before | meanwhile | afterwards |",
        "|---|---|---|---|---|",
    ]
    titles = {one.name: one.title for one in SCENARIOS}
    for name, told_ in found.items():
        for one in told_:
            cells = [_cell(part, has_work=has_work) for part in (one.steady, one.event, one.after)]
            shed = f" (shed {one.shed})" if one.shed else ""
            lines.append(f"| {titles[name]} | `{one.policy}`{shed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(part: Part, *, has_work: bool) -> str:
    ttfts: Sequence[float | None] = (part.ttft_mean_s, part.ttft_p50_s, part.ttft_p99_s)
    shown = " / ".join("-" if value is None else f"{value:.2f}" for value in ttfts)
    hits = "-" if part.hit_rate is None else f"{part.hit_rate:.0%}"
    work = f", {part.work_max_mean or 0.0:.2f}" if has_work else ""
    return f"{shown}, {hits}{work}, {part.moves}"
