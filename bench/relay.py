"""What the agent costs a plain request, beside nginx: CPU, added latency, memory."""

from __future__ import annotations

from bench import load
from bench.machine import Process, peers, progress
from bench.report import Row, Section, cost_row

SHORT = load.chat(stream=False)
LARGE = load.chat(stream=False, prompt_bytes=128 * 1024)  # a prompt of 32k tokens


def run(rounds: int, seconds: float) -> Section:
    """Measure everything in interleaved rounds, so that all peers meet the same machine."""
    short: dict[str, list[float]] = {}
    large: dict[str, list[float]] = {}
    one: dict[str, list[load.Result]] = {}
    problems: list[str] = []
    with peers() as found:
        in_front = {name: p for name, p in found.items() if name != "engine"}
        for name, peer in in_front.items():
            _note(problems, name, load.requests(peer.port, SHORT, connections=32, seconds=1.0))
        for number in range(1, rounds + 1):
            for name, peer in in_front.items():
                progress(f"relay, round {number} of {rounds}: short requests through {name}")
                short.setdefault(name, []).append(_cost(peer, name, SHORT, 32, seconds, problems))
                progress(f"relay, round {number} of {rounds}: 128 KiB requests through {name}")
                large.setdefault(name, []).append(_cost(peer, name, LARGE, 8, seconds, problems))
            for name, peer in found.items():
                progress(f"relay, round {number} of {rounds}: latency through {name}")
                result = load.requests(peer.port, SHORT, connections=1, seconds=seconds)
                _note(problems, name, result)
                one.setdefault(name, []).append(result)
        memory = {name: [peer.memory_mib()] for name, peer in in_front.items()}
    progress("")
    rows = [
        cost_row("short_request_cpu", "CPU a short request, 32 connections", "µs", short),
        cost_row("large_request_cpu", "CPU a request of 128 KiB, 8 connections", "µs", large),
        _latency_row("added_latency_p50", "latency added, 1 connection, P50", 0.5, one),
        _latency_row("added_latency_p99", "latency added, 1 connection, P99", 0.99, one),
        cost_row("memory", "memory", "MiB", memory),
    ]
    return Section(rows=rows, problems=problems)


def _cost(
    peer: Process, name: str, request: bytes, connections: int, seconds: float, problems: list[str]
) -> float:
    before = peer.cpu_s()
    result = load.requests(peer.port, request, connections=connections, seconds=seconds)
    used = peer.cpu_s() - before
    _note(problems, name, result)
    return 1e6 * used / max(1, result.answered)


def _latency_row(key: str, title: str, share: float, results: dict[str, list[load.Result]]) -> Row:
    """Give what each peer adds to the engine's own latency, round by round."""
    measured = {
        name: [result.percentile_ms(share) for result in found] for name, found in results.items()
    }
    floor = measured.pop("engine")
    added = {
        name: [ms - own for ms, own in zip(found, floor, strict=True)]
        for name, found in measured.items()
    }
    return cost_row(key, title, "ms", added)


def _note(problems: list[str], name: str, result: load.Result) -> None:
    problems += [f"{name}: {count} x {what}" for what, count in result.problems.items()]
