"""What the agent costs a streamed token, beside nginx: CPU and memory."""

from __future__ import annotations

from bench import load
from bench.engine import STEP_S
from bench.machine import Process, peers, progress
from bench.report import Section, cost_row

STREAMS = 100
EVENTS_BESIDE_TOKENS = 2  # usage and [DONE]


def run(rounds: int, seconds: float) -> Section:
    """Measure in interleaved rounds, so that all peers meet the same machine."""
    tokens = max(50, int(seconds / STEP_S))
    costs: dict[str, list[float]] = {}
    problems: list[str] = []
    with peers() as found:
        in_front = {name: p for name, p in found.items() if name != "engine"}
        for name, peer in in_front.items():
            _cost(name, peer, 50, problems)
        for number in range(1, rounds + 1):
            for name, peer in in_front.items():
                progress(f"streams, round {number} of {rounds}: {STREAMS} through {name}")
                costs.setdefault(name, []).append(_cost(name, peer, tokens, problems))
        memory = {name: [peer.memory_mib()] for name, peer in in_front.items()}
    progress("")
    title = f"CPU a million streamed tokens, {STREAMS} streams"
    rows = [
        cost_row("million_tokens_cpu", title, "s", costs),
        cost_row("memory", "memory", "MiB", memory),
    ]
    return Section(rows=rows, problems=problems)


def _cost(name: str, peer: Process, tokens: int, problems: list[str]) -> float:
    request = load.chat(stream=True, tokens=tokens)
    before = peer.cpu_s()
    result = load.rounds(peer.port, request, connections=STREAMS, each=1)
    used = peer.cpu_s() - before
    expected = STREAMS * (tokens + EVENTS_BESIDE_TOKENS)
    problems += [f"{name}: {count} x {what}" for what, count in result.problems.items()]
    if result.events != expected:
        problems.append(f"{name}: {result.events} events instead of {expected}")
    return 1e6 * used / (STREAMS * tokens)
