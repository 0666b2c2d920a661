"""Chaos before one agent: `python -m tests.chaos --rounds 25 --seed 1 --workers 3`.

Engines fail in every way known, clients are rude, tables change all the time, workers are killed.
Whatever happens: answers are those that were promised, streams end or say why, nothing stays under
way, and the agent's log has no error. A fault found here becomes an ordinary test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.agent.processes import AgentProcess
from tests.agent.waiting import until
from tests.chaos.clients import Clients
from tests.chaos.engine import ChaosEngine
from tests.chaos.tables import Tables
from tests.fakes.control_plane import FakeControlPlane

ENGINES = 8


class Chaos:
    """One run: what takes part in it, and what was found wrong."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.chance = random.Random(options.seed)
        self.engines = [ChaosEngine(options.seed * 100 + n) for n in range(ENGINES)]
        self.tables = Tables(self.chance, self.engines)
        self.plane = FakeControlPlane()
        self.faults: list[str] = []

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            clients = Clients(self.chance, int(self.agent.traffic.rpartition(":")[2]))
            stack.push_async_callback(clients.http.aclose)
            for number in range(self.options.rounds):
                await self._round(clients)
                await self._settles(clients)
                print(f"round {number + 1}: {sum(clients.answers.values())} answers", flush=True)
            self.faults += clients.faults + self._errors()
            print("answers", dict(clients.answers.most_common()))
            print("faults of engines", dict(sum((e.met for e in self.engines), Counter())))

    async def _start(self, stack: AsyncExitStack) -> None:
        for engine in self.engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        self.plane.tokens = {"once"}
        self._new_table()
        await self.plane.start()
        stack.push_async_callback(self.plane.stop)
        (self.folder / "token").write_text("once\n")
        self.agent = AgentProcess(
            self.folder / "agent.log",
            *("agent", "--control-plane", self.plane.url, "--name", "node-0"),
            *("--token-file", str(self.folder / "token")),
            *("--state-dir", str(self.folder / "state")),
            *("--workers", str(self.options.workers)),
        )
        await self.agent.start()
        stack.push_async_callback(self.agent.kill)
        await until(lambda: self.agent.events("registered") or self.agent.exited, within_s=120)

    def _new_table(self) -> None:
        self.plane.table = self.tables.next()
        for tenant in self.plane.table.tenants:
            self.plane.limits[tenant.name] = tenant.limits

    async def _push(self) -> None:
        self._new_table()
        answer = await self.plane.push(self.agent.admin, self.plane.table)
        if answer.status_code != 200:
            self.faults.append(f"a table was refused: {answer.text}")

    async def _round(self, clients: Clients) -> None:
        for engine in self.engines:
            engine.faulty = self.chance.choice([0, 0, 0.1, 0.5])
        await self._push()
        asked = []
        for _ in range(self.chance.choice([40, 120])):
            asked.append(asyncio.create_task(clients.one()))
            if self.chance.random() < 0.5:
                await asyncio.sleep(self.chance.random() * 0.02)
            if self.chance.random() < 0.01:
                await self._push()
            if self.options.workers > 1 and self.chance.random() < 0.01:
                self._kill_one()
        await asyncio.gather(*asked)

    def _kill_one(self) -> None:
        served = {e["worker"]: e["pid"] for e in self.agent.events("worker_serves")}
        try:
            os.kill(self.chance.choice(list(served.values())), signal.SIGKILL)
        except ProcessLookupError:
            return  # it was killed a moment ago

    async def _settles(self, clients: Clients) -> None:
        """See that nothing stays under way, at the agent or at an engine."""
        try:
            async with asyncio.timeout(60):
                while await self._under_way(clients):  # noqa: ASYNC110 - a page, no event
                    await asyncio.sleep(0.05)
        except TimeoutError:
            self.faults.append(f"{await self._under_way(clients):g} requests stay under way")

    async def _under_way(self, clients: Clients) -> float:
        page = (await clients.http.get(f"{self.agent.admin}/metrics")).text
        samples = [s for f in text_string_to_metric_families(page) for s in f.samples]
        counted = sum(s.value for s in samples if s.name == "signalbox_inflight_requests")
        return counted + sum(engine.running for engine in self.engines)

    def _errors(self) -> list[str]:
        told = [f"its log: {e}" for e in self._events() if e.get("level") in ("error", "critical")]
        return told + ["its log has a traceback"] * ("Traceback" in self.agent.text)

    def _events(self) -> list[dict]:
        names = {"worker_ended"}  # those that we killed
        lines = [line for line in self.agent.text.splitlines() if line.startswith("{")]
        return [e for e in map(json.loads, lines) if e.get("event") not in names]


def main() -> int:
    """Run it; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="signalbox-chaos-") as folder:
        chaos = Chaos(Path(folder), options)
        asyncio.run(chaos.run())
        for fault in chaos.faults:
            print("WRONG:", fault)
        if chaos.faults:
            print(chaos.agent.text[-20_000:], file=sys.stderr)
    return 1 if chaos.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
