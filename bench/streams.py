"""What each router costs a streamed token: CPU, time to the first token, memory."""

from __future__ import annotations

from bench import load
from bench.peers import running
from bench.report import Section, Table
from bench.rounds import Case, Plan
from bench.rounds import run as run_rounds

# Connections (None: many), the engine's time for a token. Fast for one stream, or the probes beside
# it would be most of what is measured; slow for many, or no machine could follow.
PACES: tuple[tuple[int | None, float], ...] = ((1, 0.001), (32, 0.02), (None, 0.1))
SHORTEST = 10  # tokens
SPREAD_S = 2.0


def run(plan: Plan) -> Section:
    """Measure in interleaved rounds, so that all peers meet the same machine."""
    cases = [_case(plan, count or plan.many, step_s) for count, step_s in PACES]
    with running(plan.peers) as found:
        outcome = run_rounds("streams", found, plan, cases)
    many = cases[-1]
    tables = [
        Table(
            "CPU a million streamed tokens",
            [
                outcome.quantity(c, f"million_tokens_cpu_{c.load.connections}", "s", _cpu_s)
                for c in cases
            ],
        ),
        Table(
            "time to the first token added to the engine's own",
            [
                outcome.added_ms(many, f"added_ttft_p{p}", p / 100, lambda r: r.first_byte_s)
                for p in (50, 99)
            ],
        ),
        Table("memory", [outcome.memory(c, f"memory_{c.load.connections}") for c in cases]),
    ]
    return Section(tables, outcome.told_problems(), found.absent)


def _case(plan: Plan, connections: int, step_s: float) -> Case:
    tokens = max(SHORTEST, int(plan.seconds / step_s))
    title = f"{connections:,} stream{'s' * (connections > 1)}"
    return Case(
        key=title,
        title=title,
        load=_load(plan, connections, step_s, tokens),
        slow=_load(plan, connections, step_s, max(SHORTEST, tokens // 10)),
        with_engine=connections == plan.many,
    )


def _load(plan: Plan, connections: int, step_s: float, tokens: int) -> load.Load:
    return load.Load(
        request=load.chat(stream=True, tokens=tokens, step_s=step_s),
        connections=connections,
        seconds=plan.seconds,
        tokens=tokens,
        warm_up=load.chat(stream=True, tokens=2, step_s=0.01),
        spread_s=SPREAD_S if connections > 100 else 0.0,
    )


def _cpu_s(result: load.Result) -> float:
    return 1e6 * result.cpu_s / result.tokens
