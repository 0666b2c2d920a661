"""Asks each replica whether it lives, makes warming ones answer a first request, learns who it is.

How many bad probes make a replica unhealthy, and that tokens outweigh them, is `core`'s judgement.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import Replica
from routing_agent.engine.base import FirstRequest, read_models
from routing_agent.engine.drivers import driver_for
from routing_agent.engine.rounds import Rounds
from routing_agent.http_client import CallFailed, HttpClient

log = structlog.get_logger()

SOON_S = 1.0  # pause while a replica is out or warming: it should be used within seconds
FIRST_REQUEST_LIMIT_S = 60.0  # a first request may compile kernels
FACTS_AGE_S = 60.0  # version and models are asked again after this, and after a restart


@dataclass
class Prober:
    """Watches the health of all replicas in the table."""

    fleet: Fleet
    client: HttpClient
    chance: Chance
    _facts_at: dict[Replica, tuple[float, float | None]] = field(default_factory=dict)

    async def run(self) -> None:
        """Probe until cancelled."""
        await Rounds(self.fleet, self.chance, visit=self.visit, pause_s=self.pause_s).run()

    def pause_s(self, replica: Replica) -> float:
        """Give the time until a replica's next probe."""
        interval_s = replica.settings.probe_interval_s
        needs_care = replica.health != "healthy" or is_warming(replica)
        return min(SOON_S, interval_s) if needs_care else interval_s

    async def visit(self, replica: Replica) -> None:
        """Probe one replica once."""
        reason = await self._problem(replica)
        if replica.note_probe(not reason, reason or "answers", time.monotonic()):
            log.info("replica_health", replica=replica.id, pool=replica.pool, **_health(replica))
        if reason:
            return
        await self._learn(replica)
        if is_warming(replica) and replica.health == "healthy":
            await self._warm_up(replica)

    async def _problem(self, replica: Replica) -> str:
        """Call the health page; "" = good, else what is wrong."""
        endpoint, settings = replica.endpoint, replica.settings
        url = endpoint.url + driver_for(endpoint.engine).health_path
        try:
            response = await self.client.call(
                "GET", url, headers=authorization(replica), timeout_s=settings.probe_timeout_s
            )
        except CallFailed as error:
            return str(error)
        return "" if response.ok else f"health page answered {response.status}"

    async def _learn(self, replica: Replica) -> None:
        """Ask version and models, seldom: they change only with the process or its adapters."""
        now = time.monotonic()
        asked_at, process = self._facts_at.get(replica, (None, None))
        is_fresh = asked_at is not None and now - asked_at < FACTS_AGE_S
        if is_fresh and process == replica.process_started_at:
            return
        self._facts_at = {r: f for r, f in self._facts_at.items() if r in self._current()}
        self._facts_at[replica] = (now, replica.process_started_at)
        driver = driver_for(replica.endpoint.engine)
        if driver.version_path is not None:
            replica.engine_version = driver.read_version(
                await self._get(replica, driver.version_path)
            )
        try:
            models = read_models(await self._get(replica, "/v1/models"))
        except ValueError:
            return  # an engine without the list: what it serves stays as the table says
        replica.model_names = tuple(model.id for model in models)
        replica.adapters = tuple(model.id for model in models if model.parent)

    async def _get(self, replica: Replica, path: str) -> bytes:
        """Get a page that is only nice to have; empty if it is not there."""
        try:
            response = await self.client.call(
                "GET",
                replica.endpoint.url + path,
                headers=authorization(replica),
                timeout_s=replica.settings.probe_timeout_s,
            )
        except CallFailed:
            return b""
        return response.body if response.ok else b""

    async def _warm_up(self, replica: Replica) -> None:
        """Send the first request: a completion, or an embedding where completions are unknown."""
        driver = driver_for(replica.endpoint.engine)
        model = replica.endpoint.served_model or self._model_of(replica)
        problem = ""
        for embeds in (False, True):
            problem = await self._first_request(replica, driver.first_request(model, embeds=embeds))
            if not problem:
                replica.warmed = True
                log.info("replica_warmed", replica=replica.id, pool=replica.pool)
                return
        replica.health_reason = f"first request: {problem}"
        log.warning("replica_not_warm", replica=replica.id, pool=replica.pool, why=problem)

    async def _first_request(self, replica: Replica, request: FirstRequest) -> str:
        try:
            response = await self.client.call(
                "POST",
                replica.endpoint.url + request.path,
                body=request.body,
                headers={"content-type": "application/json"} | authorization(replica),
                timeout_s=FIRST_REQUEST_LIMIT_S,
            )
        except CallFailed as error:
            return str(error)
        return "" if response.ok else f"{request.path} answered {response.status}"

    def _model_of(self, replica: Replica) -> str:
        table = self.fleet.table
        pool = table.pools.get(replica.pool) if table is not None else None
        return pool.model if pool is not None else ""

    def _current(self) -> set[Replica]:
        return set(self.fleet.replicas.values())


def is_warming(replica: Replica) -> bool:
    """Say whether a replica still owes its first answer."""
    return replica.endpoint.state == "warming" and not replica.warmed


def authorization(replica: Replica) -> dict[str, str]:
    """Give the header with the engine's own key, if it has one."""
    key = replica.endpoint.credential
    return {"authorization": f"Bearer {key}"} if key else {}


def _health(replica: Replica) -> dict[str, str]:
    return {"health": replica.health, "why": replica.health_reason}
