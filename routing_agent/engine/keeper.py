"""Holds the adapters of this node's replicas as the table wants them: fetch, load, verify, unload.

Each adapter on each replica goes its own way: one that cannot be fetched or loaded holds up no
other. Nothing is believed but the engine's own list.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from routing_agent.core.attention import next_tick_s
from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import Replica
from routing_agent.core.upkeep import Attempts, PackageUnavailable, Verdict, next_step
from routing_agent.engine.base import adapters_of, read_models
from routing_agent.engine.calls import CallVerdict, EngineCall
from routing_agent.engine.drivers import driver_for
from routing_agent.engine.probe import authorization, process_of
from routing_agent.http_client import CallFailed, HttpClient
from routing_agent.metrics import Metrics
from routing_agent.wire import SERVED_NAME_DIGITS, Adapter, AdapterStage

log = structlog.get_logger()

TICK_S: Final = 0.2
LIST_LIMIT_S: Final = 5.0

Key = tuple[Replica, str]  # and the adapter's served name


class Packages(Protocol):
    """Where the files of adapters are on this node's disk."""

    async def folder_of(self, adapter: Adapter) -> Path:
        """Give the folder with an adapter's files, fetched if need be; or PackageUnavailable."""
        ...


class _Failed(Exception):
    """A step that did not bring what it should; `rejected`: it would not, unchanged."""

    def __init__(self, message: str, *, rejected: bool = False) -> None:
        super().__init__(message)
        self.rejected = rejected


@dataclass
class AdapterKeeper:
    """Looks after the adapters of the replicas on one node."""

    node: str
    fleet: Fleet
    client: HttpClient  # to engines
    packages: Packages
    metrics: Metrics
    chance: Chance
    _attempts: dict[Key, Attempts] = field(default_factory=dict)
    _under_way: set[Key] = field(default_factory=set)
    _own: tuple[int, list[Replica]] = (-1, [])  # of which generation of the fleet

    async def run(self) -> None:
        """Look after them until cancelled."""
        async with asyncio.TaskGroup() as steps:
            while True:
                for step in self._due(time.monotonic()):
                    steps.create_task(step)
                await asyncio.sleep(next_tick_s(time.monotonic(), TICK_S))

    def digests_in_use(self) -> set[str]:
        """Give the beginnings of the digests that an engine here holds or is to hold."""
        return {
            name[-SERVED_NAME_DIGITS:]
            for replica in self._replicas()
            for name in (*replica.adapters.wanted, *replica.adapters.ours)
        }

    # -- what to do ----------------------------------------------------------------------------

    def _replicas(self) -> list[Replica]:
        generation, own = self._own
        if generation != self.fleet.generation:
            replicas = self.fleet.replicas.values()
            own = [r for r in replicas if self.node and r.endpoint.node == self.node]
            self._forget_others(self._own[1], own)
            self._own = (self.fleet.generation, own)
        return own

    def _forget_others(self, before: list[Replica], own: list[Replica]) -> None:
        """Drop what was known of replicas that another node's agent looks after now, or nobody."""
        current = set(own)
        self._attempts = {k: a for k, a in self._attempts.items() if k[0] in current}
        for replica in before:
            if replica not in current:
                replica.adapters.states.clear()

    def _due(self, now: float) -> Iterator[Coroutine[Any, Any, None]]:
        for replica in self._replicas():
            held = replica.adapters
            for name in dict.fromkeys((*held.wanted, *held.ours, *held.states)):
                if (replica, name) not in self._under_way:
                    verdict = self._judge(replica, name, now)
                    if verdict.step in ("load", "unload"):
                        self._under_way.add((replica, name))
                        yield self._step(replica, name, verdict)

    def _judge(self, replica: Replica, name: str, now: float) -> Verdict:
        """Decide about one adapter, and show what is not done just now."""
        attempts = self._attempts.setdefault((replica, name), Attempts())
        if attempts.process != process_of(replica):
            attempts.process = process_of(replica)
            attempts.note_success()  # another process may take what the one before did not
        held = replica.adapters
        if name in held.wanted:
            attempts.unwanted_since = None
        elif attempts.unwanted_since is None:
            attempts.unwanted_since = now
        verdict = next_step(replica, name, attempts, now)
        if verdict.step == "keep":
            attempts.note_success()
            held.note_stage(name, "loaded", now)
        elif verdict.step == "forget":
            held.states.pop(name, None)
            del self._attempts[replica, name]
        elif verdict.step == "wait" and not attempts.failures:
            going: AdapterStage = "loading" if name in held.wanted else "unloading"
            held.note_stage(name, going, now, message=f"waits: {verdict.reason}")
        return verdict

    # -- doing it ------------------------------------------------------------------------------

    async def _step(self, replica: Replica, name: str, verdict: Verdict) -> None:
        step = verdict.step
        try:
            if step == "load":
                await self._load(replica, name)
            else:
                await self._unload(replica, name)
        except (_Failed, PackageUnavailable, CallFailed) as error:
            self._note_failure(replica, name, step, error)
        except Exception as error:
            log.exception("adapter_step_broke", replica=replica.id, adapter=name, step=step)
            self._note_failure(replica, name, step, error)
        else:
            self.metrics.adapter_steps[step, "done"] += 1
            self._note_success(replica, name, step)
        finally:
            self._under_way.discard((replica, name))

    async def _load(self, replica: Replica, name: str) -> None:
        table = self.fleet.table
        adapter = table.served_adapters.get(name) if table is not None else None
        if adapter is None:
            raise _Failed("The table does not tell its files.", rejected=True)
        calls = driver_for(replica.endpoint.engine).adapters
        if calls is None:
            raise _Failed("This kind of engine takes no adapters while it runs.", rejected=True)
        failures = self._attempts.get((replica, name), Attempts()).failures
        self._show(replica, name, "fetching", failures)
        folder = await self.packages.folder_of(adapter)
        self._show(replica, name, "loading", failures)
        await self._call(replica, calls.load(name, str(folder), pinned=adapter.pinned))
        if name not in await self._list(replica):
            raise _Failed("The engine took it and does not list it.")

    async def _unload(self, replica: Replica, name: str) -> None:
        calls = driver_for(replica.endpoint.engine).adapters
        if calls is None:
            raise _Failed("This kind of engine gives up no adapter while it runs.", rejected=True)
        replica.adapters.note_stage(name, "unloading", time.monotonic())
        await self._call(replica, calls.unload(name))
        if name in await self._list(replica):
            raise _Failed("The engine let it go and still lists it.")

    async def _call(self, replica: Replica, call: EngineCall) -> CallVerdict:
        response = await self.client.call(
            call.method,
            replica.endpoint.url + call.path,
            body=call.body,
            headers=call.headers | authorization(replica),
            timeout_s=call.timeout_s,
        )
        verdict = call.read(response.status, response.body)
        if not verdict.ok:
            raise _Failed(verdict.message, rejected=not verdict.may_be_retried)
        return verdict

    async def _list(self, replica: Replica) -> tuple[str, ...]:
        """Ask the engine what it holds, and let all know."""
        response = await self.client.call(
            "GET",
            replica.endpoint.url + "/v1/models",
            headers=authorization(replica),
            timeout_s=LIST_LIMIT_S,
        )
        if not response.ok:
            raise _Failed(f"/v1/models answered {response.status}")
        try:
            listed = adapters_of(read_models(response.body))
        except ValueError as error:
            raise _Failed(str(error)) from None
        replica.adapters.note_listed(listed, time.monotonic())
        return listed

    # -- telling -------------------------------------------------------------------------------

    @staticmethod
    def _show(replica: Replica, name: str, stage: AdapterStage, failures: int) -> None:
        before = replica.adapters.states.get(name)
        message = before.message if failures and before is not None else ""
        replica.adapters.note_stage(
            name, stage, time.monotonic(), message=message, attempts=failures
        )

    def _note_success(self, replica: Replica, name: str, step: str) -> None:
        attempts = self._attempts.get((replica, name))
        if attempts is not None:
            attempts.note_success()
        if step == "load":
            replica.adapters.note_stage(name, "loaded", time.monotonic())
        else:
            replica.adapters.states.pop(name, None)
        log.info("adapter_moved", replica=replica.id, adapter=name, step=step)

    def _note_failure(self, replica: Replica, name: str, step: str, error: Exception) -> None:
        now = time.monotonic()
        rejected = isinstance(error, _Failed) and error.rejected
        self.metrics.adapter_steps[step, "rejected" if rejected else "failed"] += 1
        attempts = self._attempts.setdefault((replica, name), Attempts())
        pause_s = attempts.note_failure(now, rejected=rejected, chance=self.chance.random())
        log.warning(
            "adapter_step_failed",
            replica=replica.id,
            adapter=name,
            step=step,
            why=str(error),
            again_in_s=round(pause_s, 1),
        )
        replica.adapters.note_stage(
            name,
            "failed" if step == "load" else "unloading",
            now,
            message=str(error),
            attempts=attempts.failures,
        )
