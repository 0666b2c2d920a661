"""Reads each engine's metrics every second: load, cache size, and whether it was restarted."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import EngineFigures, Replica
from routing_agent.engine.base import Driver, EngineLoad, NotMetrics
from routing_agent.engine.drivers import driver_for
from routing_agent.engine.probe import authorization
from routing_agent.engine.rounds import Rounds
from routing_agent.http_client import CallFailed, HttpClient

log = structlog.get_logger()


@dataclass
class Scraper:
    """Watches the load of all replicas whose engine tells it."""

    fleet: Fleet
    client: HttpClient
    chance: Chance
    _previous: dict[Replica, EngineLoad] = field(default_factory=dict)

    async def run(self) -> None:
        """Scrape until cancelled."""
        await Rounds(self.fleet, self.chance, visit=self.visit, pause_s=self.pause_s).run()

    def pause_s(self, replica: Replica) -> float:
        """Give the time until a replica's next scrape."""
        return replica.settings.scrape_interval_s

    async def visit(self, replica: Replica) -> None:
        """Scrape one replica once. What cannot be read is an error with a reason, never a zero."""
        driver = driver_for(replica.endpoint.engine)
        if driver.metrics_path is None:
            return
        try:
            load = await self._load(replica, driver, driver.metrics_path)
        except (CallFailed, NotMetrics) as error:
            if str(error) != replica.scrape_error:
                log.warning("scrape_failed", replica=replica.id, why=str(error))
            replica.note_scrape_error(str(error))
            return
        self._take_over(replica, load, time.monotonic())

    async def _load(self, replica: Replica, driver: Driver, path: str) -> EngineLoad:
        response = await self.client.call(
            "GET",
            replica.endpoint.url + path,
            headers=authorization(replica),
            timeout_s=replica.settings.probe_timeout_s,
        )
        if not response.ok:
            raise NotMetrics(f"{path} answered {response.status}")
        return driver.read_load(response.body.decode("utf-8", "replace"))

    def _take_over(self, replica: Replica, load: EngineLoad, now: float) -> None:
        previous = self._previous.get(replica, EngineLoad())
        self._previous = {r: p for r, p in self._previous.items() if r in self._current()}
        self._previous[replica] = load
        is_another = replica.note_process(load.process_started_at) or went_back(previous, load)
        if is_another:
            replica.warmed = False
            log.info("engine_restarted", replica=replica.id, pool=replica.pool)
        elif generated_since(previous, load):
            replica.last_token_at = now  # whoever asked for them: an engine that generates is alive
        replica.note_scrape(figures_of(load), now)

    def _current(self) -> set[Replica]:
        return set(self.fleet.replicas.values())


def figures_of(load: EngineLoad) -> EngineFigures:
    """Give a scrape in the terms of the core."""
    return EngineFigures(
        running=load.running,
        waiting=load.waiting,
        kv_usage=load.kv_usage,
        kv_capacity_tokens=load.kv_capacity_tokens,
        preemptions_total=load.preemptions_total,
        is_asleep=load.awake is False,
    )


def went_back(before: EngineLoad, after: EngineLoad) -> bool:
    """Say whether a counter fell, which only a new process does."""
    pairs = (
        (before.prompt_tokens_total, after.prompt_tokens_total),
        (before.output_tokens_total, after.output_tokens_total),
    )
    return any(b is not None and a is not None and a < b for b, a in pairs)


def generated_since(before: EngineLoad, after: EngineLoad) -> bool:
    """Say whether the engine generated tokens between two scrapes."""
    b, a = before.output_tokens_total, after.output_tokens_total
    return b is not None and a is not None and a > b
