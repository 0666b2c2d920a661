"""Rounds: in each, the same conversations through every router, one right after the other.

Every run has engines and a router of its own, so nobody finds cached what another left behind.
Hits and work are the engines' own counters; CPU is the router's own clock, its children included.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from bench.machine import ENGINES, Process, progress, simulated_engines
from bench.peers import Absent, Peer, nginx, ours_compiled, sglang, start_peer, vllm
from bench.talks.figures import Row, computed, max_mean_over_time, seen
from bench.talks.people import Crowd, Heard, hold
from routing_agent.engine.base import EngineLoad
from routing_agent.engine.drivers import driver_for
from routing_agent.http_client import HttpClient

SAMPLE_PAUSE_S: Final = 0.25
REST_S: Final = 2.0
READ_LIMIT_S: Final = 10.0
POLICIES: Final = ("expected_ttft", "consistent_hash", "least_tokens")
OURS: Final = tuple(Peer(p, ours_compiled("--policy", p)) for p in POLICIES)
OTHERS: Final = (
    Peer("sglang-router cache_aware", sglang("cache_aware")),
    Peer("vllm-router sticky_least_loaded", vllm("sticky_least_loaded")),
)
# What an nginx user would have: the session's header where there is one. Where there is none,
# least_conn, or the client's address: here each person has one of their own, as if none of them
# sat behind a gateway or in an office with others.
WITH_KEYS: Final = (
    *OURS, *OTHERS, Peer("nginx hash of session", nginx("hash $http_x_session_id consistent")),
)  # fmt: skip
WITHOUT_KEYS: Final = (
    *OURS, *OTHERS, Peer("vllm-router cache_aware", vllm("cache_aware")),
    Peer("nginx hash of address", nginx("hash $remote_addr consistent")),
    Peer("nginx least_conn", nginx("least_conn")),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all runs have in common."""

    crowd: Crowd
    has_key: bool
    prefill_rate: float
    kv_blocks: int
    decode_step_ms: float

    def peers(self) -> tuple[Peer, ...]:
        """Give who is measured."""
        return WITH_KEYS if self.has_key else WITHOUT_KEYS


def run(setting: Setting, rounds: int, names: Sequence[str], out: Path | None) -> list[Row]:
    """Measure; each run's figures are appended to `out` as a line of JSON."""
    peers = [p for p in setting.peers() if not names or p.name in names]
    rows = []
    for number in range(rounds):
        at = (number + setting.crowd.seed) % len(peers)
        for peer in peers[at:] + peers[:at]:
            progress(f"round {number + 1} of {rounds}: {peer.name}")
            try:
                row = _one(setting, peer)
            except Absent as reason:
                print(f"NOT MEASURED: {peer.name}: {reason}", file=sys.stderr)
                continue
            rows.append(row)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    progress("")
    return rows


def _one(setting: Setting, peer: Peer) -> Row:
    with (
        tempfile.TemporaryDirectory(prefix="signalbox-bench-") as scratch,
        contextlib.ExitStack() as stack,
    ):
        folder = Path(scratch)
        engines = simulated_engines(
            stack, folder, ENGINES,
            "--prefill-rate", str(setting.prefill_rate), "--kv-blocks", str(setting.kv_blocks),
            "--decode-step-ms", str(setting.decode_step_ms),
        )  # fmt: skip
        ports = [engine.port for engine in engines]
        router = start_peer(stack, peer, folder, ports)
        return uvloop.run(_talk(setting, peer, router, ports))


async def _talk(setting: Setting, peer: Peer, router: Process, ports: list[int]) -> Row:
    client = HttpClient()
    heard, crowd, samples = Heard(), setting.crowd, list[list[float]]()
    try:
        rest_s = await _rest(router)
        before = await loads(client, ports)
        began_s, cpu_s = time.perf_counter(), router.cpu_s()
        sampler = asyncio.ensure_future(_sample(client, ports, samples))
        async with asyncio.TaskGroup() as tasks:
            for talk in crowd.talks():
                tasks.create_task(
                    hold(talk, router.port, heard, answer_tokens=crowd.answer_tokens,
                         has_key=setting.has_key)
                )  # fmt: skip
        took_s, cpu_s = time.perf_counter() - began_s, router.cpu_s() - cpu_s
        sampler.cancel()
        after = await loads(client, ports)
    finally:
        await client.close()
    return {
        "router": peer.name,
        "keys": setting.has_key,
        "seconds": round(took_s, 1),
        **seen(heard),
        **computed(before, after),
        "inflight_max_mean": max_mean_over_time(samples),
        "cpu_ms_per_request": round(1000 * cpu_s / max(heard.requests, 1), 3),
        "cpu_ms_per_second_at_rest": round(1000 * rest_s, 2),
        "memory_mib": round(router.memory_mib(), 1),
    }


async def _rest(router: Process) -> float:
    """Give the CPU seconds it uses in a second in which nobody asks anything."""
    before = router.cpu_s()
    await asyncio.sleep(REST_S)
    return (router.cpu_s() - before) / REST_S


async def loads(client: HttpClient, ports: Sequence[int]) -> list[EngineLoad]:
    """Read every engine's counters."""
    driver = driver_for("vllm")
    path = driver.metrics_path or ""
    found = []
    for port in ports:
        page = await client.call("GET", f"http://127.0.0.1:{port}{path}", timeout_s=READ_LIMIT_S)
        found.append(driver.read_load(page.body.decode()))
    return found


async def _sample(client: HttpClient, ports: Sequence[int], samples: list[list[float]]) -> None:
    """Note until cancelled how many requests each engine has, computed or waiting."""
    while True:
        await asyncio.sleep(SAMPLE_PAUSE_S)
        found = await loads(client, ports)
        samples.append([float((one.running or 0) + (one.waiting or 0)) for one in found])
