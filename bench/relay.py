"""What each router costs a plain request: CPU, added latency, memory."""

from __future__ import annotations

from dataclasses import replace

from bench import load
from bench.peers import running
from bench.report import Section, Table
from bench.rounds import Case, Plan
from bench.rounds import run as run_rounds

SHORT = load.chat(stream=False)
LARGE = load.chat(stream=False, prompt_bytes=128 * 1024)  # a prompt of 32k tokens


def run(plan: Plan) -> Section:
    """Measure everything in interleaved rounds, so that all peers meet the same machine."""
    short = [_case("short", SHORT, plan, n) for n in (1, 32, plan.many)]
    large = [_case("128 KiB", LARGE, plan, n) for n in (1, 32, plan.many)]
    with running(plan.peers) as found:
        outcome = run_rounds("relay", found, plan, [*short, *large])
    tables = [
        Table(
            "CPU a short request",
            [outcome.quantity(c, f"short_request_cpu_{_n(c)}", "µs", _cpu_us) for c in short],
        ),
        Table(
            "CPU a request with a body of 128 KiB",
            [outcome.quantity(c, f"large_request_cpu_{_n(c)}", "µs", _cpu_us) for c in large],
        ),
        Table(
            "latency added to the engine's own, short requests",
            [
                outcome.added_ms(short[0], f"added_latency_p{p}", p / 100, lambda r: r.latencies_s)
                for p in (50, 99)
            ],
        ),
        Table("memory, short requests", [outcome.memory(c, f"memory_{_n(c)}") for c in short]),
        Table("memory, 128 KiB", [outcome.memory(c, f"large_memory_{_n(c)}") for c in large]),
    ]
    return Section(tables, outcome.told_problems(), found.absent)


def _case(kind: str, request: bytes, plan: Plan, connections: int) -> Case:
    asked = load.Load(request, connections, plan.seconds, warm_up=request)
    title = f"{connections:,} connection{'s' * (connections > 1)}"
    return Case(
        key=f"{kind}, {title}",
        title=title,
        load=asked,
        slow=replace(asked, warm_up=None) if connections > 100 else asked,
        with_engine=connections == 1 and request is SHORT,
    )


def _n(case: Case) -> int:
    return case.load.connections


def _cpu_us(result: load.Result) -> float:
    return 1e6 * result.cpu_s / result.answered
