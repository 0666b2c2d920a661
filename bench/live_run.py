"""What runs before live engines share: their rows, what they ask agent and engines, waiting."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.live_client import ask, chat, get_json
from routing_agent.engine.calls import CallVerdict, EngineCall
from routing_agent.engine.drivers import driver_for
from routing_agent.http_client import CallFailed, HttpClient

LONG: Final = 1500  # tokens
GOOD: Final = "ok"
RETURN_LIMIT_S: Final = 400.0


@dataclass
class Row:
    """One check: what was done, what was seen, whether that is right."""

    what: str
    seen: str
    ok: bool


@dataclass
class Run:
    """One run against the engines of one make."""

    engine: str
    urls: list[str]
    agent: str
    admin: str
    client: HttpClient
    options: argparse.Namespace
    model: str = ""
    rows: list[Row] = field(default_factory=list)

    def note(self, what: str, seen: str, ok: bool) -> None:
        """Keep one row, and show it at once."""
        self.rows.append(Row(what, seen, ok))
        print(f"{'ok ' if ok else 'BAD'}  {what:<44} {seen}", flush=True)

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """Give what the agent knows of its replicas, by id."""
        state = await get_json(self.client, f"{self.admin}/agent/v1/state")
        return {r["replica"]: r for r in state.get("replicas", [])}

    async def reason(self, replica: str) -> str:
        """Give what the agent says about a replica's health."""
        return str((await self.replicas()).get(replica, {}).get("health_reason", ""))

    async def says(self, replica: str, word: str | tuple[str, ...]) -> bool:
        """Whether the agent's words about a replica's health begin so."""
        return (await self.reason(replica)).startswith(word)

    async def is_out(self, replica: str) -> bool:
        """Whether the agent sends a replica nothing new."""
        found = (await self.replicas()).get(replica, {})
        is_doubted = str(found.get("health_reason")).startswith(("draining", "dead"))
        return is_doubted or found.get("health") == "unhealthy" or "breaker" in found

    async def are_versions_known(self) -> bool:
        """Whether the agent knows every engine's version."""
        return all(r.get("engine_version") for r in (await self.replicas()).values())

    async def serves(self, replica: str) -> bool:
        """Whether the agent has a question answered by this replica."""
        ending = await ask(self.agent, chat(self.model, tokens=2, stream=False))
        return ending.replica == replica and ending.outcome == GOOD

    async def answers(self, url: str) -> bool:
        """Whether an engine itself answers a question."""
        return (await ask(url, chat(self.model, tokens=1, stream=False))).outcome == GOOD

    async def answers_soon(self, url: str) -> bool:
        """Whether it does so within 3 s."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3.0):
                return await self.answers(url)
        return False

    async def running(self, url: str) -> int | None:
        """Ask an engine how many requests it computes or keeps waiting."""
        driver = driver_for(self.engine)  # type: ignore[arg-type]
        try:
            page = await self.client.call("GET", url + (driver.metrics_path or ""))
        except CallFailed:
            return None
        load = driver.read_load(page.body.decode())
        return (load.running or 0) + (load.waiting or 0)

    async def call(self, url: str, call: EngineCall) -> CallVerdict:
        """Send a driver's call to an engine and read the answer."""
        answer = await self.client.call(
            call.method, url + call.path, body=call.body, headers=call.headers,
            timeout_s=call.timeout_s,
        )  # fmt: skip
        return call.read(answer.status, answer.body)


async def until(
    condition: Callable[[], Awaitable[object]], limit_s: float, *, pause_s: float = 0.05
) -> float | None:
    """Wait until `condition` holds; give how long that took, `None` if it did not in time."""
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        if await condition():
            return time.monotonic() - began
        await asyncio.sleep(pause_s)
    return None


def seconds(value: float | None) -> str:
    """Show a length of time."""
    return "never" if value is None else f"{value:.2f} s"


def pid_of(path: str) -> int:
    """Read the process that a file names."""
    return int(Path(path).read_text())
