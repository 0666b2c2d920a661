"""Reads each engine's metrics every second: load, cache size, and whether it was restarted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from routing_agent.core.chance import Chance
from routing_agent.core.figures import EngineFigures
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import Replica
from routing_agent.engine import diagnosis
from routing_agent.engine.base import Driver, EngineLoad, NotMetrics
from routing_agent.engine.drivers import driver_for
from routing_agent.engine.probe import authorization
from routing_agent.engine.rounds import Rounds
from routing_agent.http_client import CallFailed, ConnectionRefused, HttpClient, Response
from routing_agent.wire import Endpoint

log = structlog.get_logger()

SAME_RESTART_S = 2.0  # no engine starts twice within this; prober and scraper notice it apart


@dataclass(frozen=True, slots=True)
class Seen:
    """The last scrape of a replica, and when its engine was last seen to compute."""

    load: EngineLoad
    stepped_at: float


@dataclass
class Scraper:
    """Watches the load of all replicas whose engine tells it."""

    fleet: Fleet
    client: HttpClient
    chance: Chance
    on_page: Callable[[Endpoint, str], None] | None = None  # who else reads what was scraped
    _previous: dict[Replica, Seen] = field(default_factory=dict)
    _gone: set[Replica] = field(default_factory=set)  # their ports were closed at the last scrape

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
            self._note_absence(replica, error)
            return
        self._take_over(replica, load, time.monotonic())

    def _note_absence(self, replica: Replica, error: Exception) -> None:
        """Take a closed port for what it is, a second after it closed: a bad probe."""
        if not isinstance(error, ConnectionRefused):
            return
        self._gone.add(replica)
        if replica.note_probe(False, diagnosis.failed_call(error), time.monotonic()):
            log.info("replica_health", replica=replica.id, health=replica.health, why=str(error))

    async def _load(self, replica: Replica, driver: Driver, path: str) -> EngineLoad:
        response = await self.client.call(
            "GET",
            replica.endpoint.url + path,
            headers=authorization(replica),
            timeout_s=replica.settings.probe_timeout_s,
        )
        if not response.ok:
            raise NotMetrics(refused_page(path, response))
        page = response.body.decode("utf-8", "replace")
        if self.on_page is not None:
            self.on_page(replica.endpoint, page)
        return driver.read_load(page)

    def _take_over(self, replica: Replica, load: EngineLoad, now: float) -> None:
        is_known = replica in self._previous
        previous = self._previous.get(replica, Seen(EngineLoad(), now))
        if len(self._previous) > len(self.fleet.replicas):
            self._forget_others()
        # One that had nothing to do did no step for a reason: its time counts from now.
        stepped = has_stepped(previous.load, load) or not previous.load.running
        seen = self._previous[replica] = Seen(load, now if stepped else previous.stepped_at)
        is_another = replica.note_process(load.process_started_at)
        was_gone = replica in self._gone and is_known
        self._gone.discard(replica)
        if is_another or was_gone or went_back(previous.load, load):
            self._note_restart(replica, now)
        elif generated_since(previous.load, load):
            replica.last_token_at = now  # whoever asked for them: an engine that generates is alive
        if load.max_running is not None:  # most engines tell it on a page, Triton here
            replica.max_running = load.max_running
        replica.note_scrape(figures_of(load), now)
        self._doubt_steps(replica, seen, now)

    def _note_restart(self, replica: Replica, now: float) -> None:
        """Note another process, unless the prober has just found that out itself."""
        noted_at = replica.restarted_at
        if noted_at is None or now - noted_at > SAME_RESTART_S:
            replica.note_restart(now)
            log.info("engine_restarted", replica=replica.id, pool=replica.pool)

    def _doubt_steps(self, replica: Replica, seen: Seen, now: float) -> None:
        """Doubt an engine that holds requests of ours and computes nothing for a TTFT limit."""
        still_s = now - max(seen.stepped_at, replica.last_token_at or 0.0)
        running = seen.load.running or 0
        is_stuck = (
            seen.load.steps_total is not None
            and running > 0
            and replica.inflight_requests > 0
            and still_s > replica.settings.ttft_limit_s
        )
        was_stuck = "steps" in replica.doubts
        if is_stuck != was_stuck and (is_stuck or seen.stepped_at == now or not running):
            replica.note_doubt("steps", diagnosis.stuck(running, still_s) if is_stuck else "")
            log.warning("replica_steps", replica=replica.id, stuck=is_stuck, running=running)

    def _forget_others(self) -> None:
        """Forget replicas that have left the table."""
        current = set(self.fleet.replicas.values())
        self._previous = {r: p for r, p in self._previous.items() if r in current}
        self._gone &= current


def figures_of(load: EngineLoad) -> EngineFigures:
    """Give a scrape in the terms of the core."""
    return EngineFigures(
        running=load.running,
        waiting=load.waiting,
        kv_usage=load.kv_usage,
        kv_capacity_tokens=load.kv_capacity_tokens,
        preemptions_total=load.preemptions_total,
        running_adapters=load.running_adapters,
        is_asleep=load.awake is False,
    )


def refused_page(path: str, response: Response) -> str:
    """Say why there are no metrics: llama.cpp guards them with its key and needs --metrics."""
    if response.status in (401, 403):
        return f"{path} answered {response.status}: the engine does not take this agent's key"
    if response.status in (404, 501):
        return f"{path} answered {response.status}: the engine was started without its metrics"
    return f"{path} answered {response.status}"


def went_back(before: EngineLoad, after: EngineLoad) -> bool:
    """Say whether a counter fell, or vanished from a good scrape: only a new process does that."""
    pairs = (
        (before.prompt_tokens_total, after.prompt_tokens_total),
        (before.output_tokens_total, after.output_tokens_total),
        (before.steps_total, after.steps_total),
    )
    is_whole = after.running is not None
    return any(b is not None and b > 0 and (a < b if a is not None else is_whole) for b, a in pairs)


def generated_since(before: EngineLoad, after: EngineLoad) -> bool:
    """Say whether the engine generated tokens, or computed at all, between two scrapes."""
    return _grew(before.output_tokens_total, after.output_tokens_total) or _grew(
        before.steps_total, after.steps_total
    )


def has_stepped(before: EngineLoad, after: EngineLoad) -> bool:
    """Say whether the engine's counters moved at all, or cannot be compared."""
    return after.steps_total is None or before.steps_total != after.steps_total


def _grew(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after > before
