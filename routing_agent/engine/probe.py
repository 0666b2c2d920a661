"""Asks each replica whether it takes requests, makes it prove that it generates, learns who it is.

How many bad probes make a replica unhealthy, and that tokens outweigh them, is `core`'s judgement;
what a bad probe means is `diagnosis`'s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import structlog

from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import Replica
from routing_agent.engine import diagnosis
from routing_agent.engine.base import (
    EngineFacts,
    FirstRequest,
    adapters_of,
    json_object,
    names_of,
    read_models,
)
from routing_agent.engine.drivers import driver_for
from routing_agent.engine.rounds import Rounds
from routing_agent.http_client import (
    CallFailed,
    ConnectionRefused,
    HttpClient,
    OutOfSockets,
    Response,
)

log = structlog.get_logger()

SOON_S = 1.0  # pause while a replica is out, doubtful or warming: used within seconds again
FIRST_REQUEST_LIMIT_S = 60.0  # a first request may compile kernels
PROOF_LIMIT_S = 10.0  # a request that shows whether a draining engine takes work again
FACTS_AGE_S = 60.0  # models are asked again after this, and after a restart
# How a server says that it has no such page; 500 is how `transformers serve` fails to list models.
NO_SUCH_PAGE = (404, 405, 500, 501)
UNAUTHORIZED = (401, 403)
# A page of this name is asked for nothing else: its "no" is no missed probe but an answer, and
# keeps new requests away at once.
READY_PAGE = "/ready"


@dataclass
class Acquaintance:
    """What the prober remembers of one replica, besides what the replica shows to everybody."""

    ready_path: str = ""  # the page of `ready_paths` that this engine has
    missing_pages: set[str] = field(default_factory=set)  # state and fact pages it lacks
    was_ready: bool = False  # since its process started
    gone_at: float | None = None  # when its port was found closed
    models_at: float | None = None
    process: tuple[float | None, float | None] | None = None  # the one the facts are about


@dataclass
class Prober:
    """Watches the health of all replicas in the table."""

    fleet: Fleet
    client: HttpClient
    chance: Chance
    _known: dict[Replica, Acquaintance] = field(default_factory=dict)

    async def run(self) -> None:
        """Probe until cancelled."""
        await Rounds(self.fleet, self.chance, visit=self.visit, pause_s=self.pause_s).run()

    def pause_s(self, replica: Replica) -> float:
        """Give the time until a replica's next probe."""
        interval_s = replica.settings.probe_interval_s
        is_doubtful = replica.probe_streak < 0 or bool(replica.doubts) or replica.figures.is_asleep
        is_doubtful = is_doubtful or replica.adapters.may_miss(time.monotonic())
        needs_care = replica.health != "healthy" or is_doubtful or is_warming(replica)
        return min(SOON_S, interval_s) if needs_care else interval_s

    async def visit(self, replica: Replica) -> None:
        """Probe one replica once."""
        known = self._acquaintance(replica)
        try:
            problem = await self._problem(replica, known)
        except OutOfSockets as error:
            log.warning("probe_left_out", replica=replica.id, why=str(error))
            return
        now = time.monotonic()
        if replica.note_probe(not problem, problem or diagnosis.well(replica, now), now):
            log.info("replica_health", replica=replica.id, pool=replica.pool, **_health(replica))
        if problem:
            if replica.health == "healthy" and not replica.probe_streak < 0:
                replica.health_reason = diagnosis.busy(problem)
            return
        await self._look_closer(replica, known)

    async def _look_closer(self, replica: Replica, known: Acquaintance) -> None:
        """Find out about an engine whose health page is good what that page does not say."""
        state = await self._state(replica, known)
        if state is not None:
            self._doubt_state(replica, state)
        await self._learn(replica, known)
        if replica.health == "unhealthy":
            return  # the rest can wait until it is used again
        await self._learn_facts(replica, known)
        if "answers" in replica.doubts:
            await self._prove(replica)
        if is_warming(replica) and replica.health == "healthy":
            await self._warm_up(replica)

    # -- does it take requests? ----------------------------------------------------------------

    async def _problem(self, replica: Replica, known: Acquaintance) -> str:
        """Call the health page; "" = good, else what is wrong. OutOfSockets says nothing of it."""
        paths = driver_for(replica.endpoint.engine).ready_paths
        problem = ""
        for path in (known.ready_path,) if known.ready_path else paths:
            try:
                response = await self._call(replica, path)
            except OutOfSockets:
                raise
            except CallFailed as error:
                return self._no_answer(known, error)
            if response.ok:
                self._note_ready(replica, known, path)
                return ""
            problem = problem or diagnosis.bad_page(path, response, was_ready=known.was_ready)
            if response.status not in NO_SUCH_PAGE:
                if path.endswith(READY_PAGE):
                    self._doubt_state(replica, problem)
                return problem
        known.ready_path = ""  # another version may have come: look at all of them next time
        return problem

    def _no_answer(self, known: Acquaintance, error: CallFailed) -> str:
        if isinstance(error, ConnectionRefused):
            known.gone_at = known.gone_at or time.monotonic()
            known.was_ready = False
        return diagnosis.failed_call(error)

    def _note_ready(self, replica: Replica, known: Acquaintance, path: str) -> None:
        """Note a good health page; behind a port that was closed before, it is another process."""
        known.ready_path = path
        known.was_ready = True
        gone_at, known.gone_at = known.gone_at, None
        is_noted = replica.restarted_at is not None and replica.restarted_at > (gone_at or 0.0)
        if gone_at is not None and known.models_at is not None and not is_noted:
            replica.note_restart(time.monotonic())
            log.info("engine_restarted", replica=replica.id, pool=replica.pool)

    async def _state(self, replica: Replica, known: Acquaintance) -> str | None:
        """Ask whether the engine sleeps or is paused; "" = it does not say so, None = no answer."""
        for page in driver_for(replica.endpoint.engine).state_pages:
            response = await self._page(replica, known, page.path)
            if response is None and page.path not in known.missing_pages:
                return None
            if response is not None and json_object(response.body).get(page.field) is True:
                return page.reason
        return ""

    def _doubt_state(self, replica: Replica, reason: str) -> None:
        if replica.note_doubt("state", reason):
            log.info("replica_state", replica=replica.id, pool=replica.pool, why=reason or "ready")

    # -- who is it? ----------------------------------------------------------------------------

    async def _learn(self, replica: Replica, known: Acquaintance) -> None:
        """Ask which models it has: seldom, but at each visit where adapters come and go."""
        now = time.monotonic()
        holds_adapters = replica.adapters.wanted or replica.adapters.listed
        age_limit_s = 0.0 if holds_adapters else FACTS_AGE_S
        is_fresh = known.models_at is not None and now - known.models_at < age_limit_s
        if is_fresh and known.process == process_of(replica) and not replica.doubts:
            return
        known.models_at = now
        await self._learn_models(replica)

    async def _learn_facts(self, replica: Replica, known: Acquaintance) -> None:
        """Ask for version and size, once in a process's life."""
        if known.process == process_of(replica):
            return
        known.process = process_of(replica)
        known.missing_pages.clear()
        driver = driver_for(replica.endpoint.engine)
        facts = EngineFacts()
        for path in driver.fact_paths:
            response = await self._page(replica, known, path)
            if response is not None:
                facts = facts.joined(driver.read_facts(path, response.body))
        replica.engine_version = facts.version
        replica.note_facts(
            kv_capacity_tokens=facts.kv_capacity_tokens, max_running=facts.max_running
        )

    async def _learn_models(self, replica: Replica) -> None:
        try:
            response = await self._call(replica, "/v1/models")
            models = read_models(response.body) if response.ok else None
        except (CallFailed, ValueError):
            return  # an engine without the list: what it serves stays as the table says
        reason = ""
        if models is not None:
            replica.model_names = names_of(models)
            replica.adapters.note_listed(adapters_of(models), time.monotonic())
            driver = driver_for(replica.endpoint.engine)
            reason = diagnosis.other_models(driver, self._model_of(replica), replica.model_names)
        elif response.status in UNAUTHORIZED:
            reason = diagnosis.bad_page("/v1/models", response, was_ready=True)
        if replica.note_doubt("identity", reason):
            log.warning("replica_identity", replica=replica.id, why=reason or "as it should be")

    async def _page(self, replica: Replica, known: Acquaintance, path: str) -> Response | None:
        """Get a page that is only nice to have; one that is not there is not asked for again."""
        if path in known.missing_pages:
            return None
        try:
            response = await self._call(replica, path)
        except CallFailed:
            return None
        if response.status in NO_SUCH_PAGE:
            known.missing_pages.add(path)
        return response if response.ok else None

    # -- does it generate? ---------------------------------------------------------------------

    async def _prove(self, replica: Replica) -> None:
        """Let an engine that refused requests for good show that it takes them again."""
        problem = await self._first_answer(replica, PROOF_LIMIT_S)
        if not problem and replica.note_doubt("answers", ""):
            log.info("replica_takes_requests_again", replica=replica.id, pool=replica.pool)

    async def _warm_up(self, replica: Replica) -> None:
        problem = await self._first_answer(replica, FIRST_REQUEST_LIMIT_S)
        if not problem:
            replica.warmed = True
            log.info("replica_warmed", replica=replica.id, pool=replica.pool)
            return
        replica.health_reason = f"first request: {problem}"
        log.warning("replica_not_warm", replica=replica.id, pool=replica.pool, why=problem)

    async def _first_answer(self, replica: Replica, limit_s: float) -> str:
        """Send the first request: a completion, or an embedding where completions are unknown."""
        driver = driver_for(replica.endpoint.engine)
        problem = ""
        for embeds in (False, True):
            request = driver.first_request(self._model_of(replica), embeds=embeds)
            problem = await self._first_request(replica, request, limit_s)
            if not problem:
                return ""
        return problem

    async def _first_request(self, replica: Replica, request: FirstRequest, limit_s: float) -> str:
        try:
            response = await self.client.call(
                "POST",
                replica.endpoint.url + request.path,
                body=request.body,
                headers={"content-type": "application/json"} | authorization(replica),
                timeout_s=limit_s,
            )
        except CallFailed as error:
            return str(error)
        return "" if response.ok else f"{request.path} answered {response.status}"

    # ------------------------------------------------------------------------------------------

    async def _call(self, replica: Replica, path: str) -> Response:
        return await self.client.call(
            "GET",
            replica.endpoint.url + path,
            headers=authorization(replica),
            timeout_s=replica.settings.probe_timeout_s,
        )

    def _model_of(self, replica: Replica) -> str:
        """Give the name the engine should know its model by."""
        table = self.fleet.table
        pool = table.pools.get(replica.pool) if table is not None else None
        return replica.endpoint.served_model or (pool.model if pool is not None else "")

    def _acquaintance(self, replica: Replica) -> Acquaintance:
        known = self._known.get(replica)
        if known is None:
            current = set(self.fleet.replicas.values())
            self._known = {r: k for r, k in self._known.items() if r in current}
            known = self._known[replica] = Acquaintance()
        return known


def process_of(replica: Replica) -> tuple[float | None, float | None]:
    """Tell the engine's process from others: by its start as it says, and as we noticed."""
    return replica.process_started_at, replica.restarted_at


def is_warming(replica: Replica) -> bool:
    """Say whether a replica still owes its first answer."""
    return replica.endpoint.state == "warming" and not replica.warmed


def authorization(replica: Replica) -> dict[str, str]:
    """Give the header with the engine's own key, if it has one."""
    key = replica.endpoint.credential
    return {"authorization": f"Bearer {key}"} if key else {}


def _health(replica: Replica) -> dict[str, str]:
    return {"health": replica.health, "why": replica.health_reason}
