"""Agents as real processes: started as users start them, watched through their log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.agent.waiting import until

ROOT = Path(__file__).parents[2]


class AgentProcess:
    """`python -m routing_agent ...` on ports of its own choice."""

    def __init__(
        self,
        log: Path,
        *words: str,
        start: tuple[str, ...] = ("-m", "routing_agent"),
        admin_port: int = 0,
    ):
        self.log = log
        self.words = (*start, *words, "--port", "0", "--admin-port", str(admin_port))
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, environment: Mapping[str, str] | None = None) -> AgentProcess:
        with self.log.open("ab") as file:
            self._log_start = file.tell()
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self.words,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment or {}),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        return self

    async def listens(self) -> AgentProcess:
        await until(lambda: self.events("agent_listens") or self.exited)
        assert self.events("agent_listens"), self.text
        return self

    @property
    def exited(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    @property
    def text(self) -> str:
        return self.log.read_bytes()[self._log_start :].decode()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.text.splitlines() if line.startswith("{")]
        return [e for e in map(json.loads, lines) if e["event"] == name]

    @property
    def traffic(self) -> str:
        listens = self.events("agent_listens")[0]
        return f"{listens['scheme']}://{listens['traffic']}"

    @property
    def admin(self) -> str:
        return f"http://{self.events('agent_listens')[0]['admin']}"

    def tell(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def exit_status(self) -> int:
        assert self.process is not None
        async with asyncio.timeout(20):
            return await self.process.wait()

    async def kill(self) -> None:
        if self.process is not None and not self.exited:
            self.process.kill()
        await self.exit_status()
