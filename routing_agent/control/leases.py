"""Lease calls: this agent's parts of the limits that hold over several agents.

One call at a time for all tenants. A call that got no answer is made again under the same mark
until it has one, so that each is booked exactly once; requests wait for it 50 ms at most, or 250 ms
while the control plane is known to answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from routing_agent import wire
from routing_agent.control.identity import error_text
from routing_agent.control.reporter import Link
from routing_agent.core.fleet import Fleet
from routing_agent.core.limits import TenantGate
from routing_agent.core.shares import NEVER, WINDOW_S, Share
from routing_agent.counts import LeaseCounts
from routing_agent.http_client import CallFailed

log = structlog.get_logger()

LEASE_PATH: Final = "/api/v1/agent/leases"
WAIT_S: Final = 0.05  # how long a request may wait for its share
# While the control plane is known to answer, a late answer is worth more than a wrong refusal: on a
# busy machine one call in ten takes above 50 ms, and what it brings would be lost on who asked.
PATIENT_S: Final = 0.25
KNOWN_TO_ANSWER_S: Final = 5.0  # two reports
CALL_LIMIT_S: Final = 1.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 1.0
NEVER_TAKEN: Final = frozenset({400, 413, 422})


@dataclass(slots=True, eq=False)
class _Waiting:
    """One request that waits for a call."""

    tokens: int
    on_end: Callable[[], None]
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that must be answered, and whose shares it is about."""

    message: wire.LeaseRequest
    shares: tuple[tuple[TenantGate, wire.LeaseAsk], ...]


@contextmanager
def share_of(gate: TenantGate) -> Iterator[Share | None]:
    """Hold a gate's share to look at it or change it; None where its limits are its own."""
    if gate.share is None:
        yield None
        return
    gate.hold()
    try:
        yield gate.share
    finally:
        gate.let_go()


@dataclass
class LeaseCalls:
    """Makes the lease calls of this agent."""

    link: Link
    fleet: Fleet
    start: int  # grows with every start of this agent
    reported_at: Callable[[], float | None]  # monotonic; when a report was last answered
    counts: LeaseCounts = field(default_factory=LeaseCounts)
    calls: int = 0
    _serial: int = 0
    _pending: _Call | None = None
    _waiting: dict[str, list[_Waiting]] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _called_at: float | None = None
    _answered_at: float = float("-inf")
    _failing_since: float | None = None
    _pause_s: float = 0.0
    _again_at: float = 0.0
    _began_at: float = field(default_factory=time.monotonic)

    @property
    def last_error(self) -> str:
        """Why the last call failed; empty when it was answered."""
        return self.counts.last_error

    def wait(self, tenant: str, tokens: int, on_end: Callable[[], None]) -> None:
        """Let a request wait for one call; `on_end` is called once, within 50 or 250 ms."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        patience_s = self._patience_s(now)
        is_hung = self._called_at is not None and now - self._called_at > patience_s
        if is_hung or now < self._again_at:
            self.counts.waits["hung"] += 1
            loop.call_soon(on_end)
            return
        waiting = _Waiting(tokens, on_end)
        waiting.timer = loop.call_later(patience_s, self._give_up, tenant, waiting)
        self._waiting.setdefault(tenant, []).append(waiting)
        self._wake.set()

    def _patience_s(self, now: float) -> float:
        """Give how long a request may wait: little, unless somebody is known to be there."""
        heard_at = max(self._answered_at, self.reported_at() or self._answered_at)
        return PATIENT_S if now - heard_at < KNOWN_TO_ANSWER_S else WAIT_S

    async def run(self) -> None:
        """Make calls as they are needed until cancelled."""
        while True:
            try:
                async with asyncio.timeout(WINDOW_S):
                    await self._wake.wait()
            except TimeoutError:
                pass  # time to see what is due
            self._wake.clear()
            now = time.monotonic()
            self._judge_absence(now)
            if now >= self._again_at:
                await self.call(now)

    async def call(self, now: float) -> bool:
        """Make the call that is pending or due, if any; false if it failed."""
        covered: dict[str, list[_Waiting]] = {}
        if self._pending is None:
            self._pending = self._composed(now)
            covered, self._waiting = self._waiting, {}
        if self._pending is None:
            _end(covered)  # their tenants have gone
            return True
        self._called_at = sent_at = time.monotonic()
        self.calls += 1
        outcome = "failed"
        try:
            grants = await self._answer(self._pending.message)
        except CallFailed as error:
            self._note_failure(str(error), time.monotonic())
            return False
        else:
            self._take(self._pending, grants, sent_at)
            self._pending = None
            outcome = "answered"
            self.counts.seconds.add(time.monotonic() - sent_at)
            self._note_success()
            if self._waiting:
                self._wake.set()
            return True
        finally:
            self._called_at = None
            self.counts.calls[outcome] += 1
            self.counts.waits[outcome] += _end(covered)

    async def give_all_back(self) -> None:
        """Return what is held: this agent stops."""
        now = time.monotonic()
        if self._pending is not None and not await self.call(now):
            return
        for gate in self.fleet.gates.values():
            with share_of(gate) as share:
                if share is not None:
                    share.forget_use(now)
        await self.call(time.monotonic())

    # -- composing -----------------------------------------------------------------------------

    def _composed(self, now: float) -> _Call | None:
        shares: list[tuple[TenantGate, wire.LeaseAsk]] = []
        for name, gate in self.fleet.gates.items():
            waiting = self._waiting.get(name, [])
            with share_of(gate) as share:
                if share is None:
                    continue
                if waiting or share.is_due(gate.limits, gate.running, now):
                    wanted = (len(waiting), sum(w.tokens for w in waiting))
                    ask = share.ask(name, gate.limits, wanted, gate.running, now)
                    shares.append((gate, ask))
        if not shares:
            return None
        self._serial += 1
        message = wire.LeaseRequest(
            agent=self.link.identity.agent,
            start=self.start,
            serial=self._serial,
            asks=tuple(ask for _, ask in shares),
        )
        return _Call(message, tuple(shares))

    # -- talking -------------------------------------------------------------------------------

    async def _answer(self, message: wire.LeaseRequest) -> dict[str, wire.LeaseGrant]:
        response = await self.link.client.call(
            "POST",
            self.link.control_plane + LEASE_PATH,
            body=msgspec.json.encode(message),
            headers={
                "authorization": f"Bearer {self.link.identity.agent_token}",
                "content-type": "application/json",
            },
            timeout_s=CALL_LIMIT_S,
        )
        if response.status in NEVER_TAKEN:
            self._pending = None  # it would be refused for ever
        if not response.ok:
            raise CallFailed(f"it answered {response.status}: {error_text(response.body)}")
        try:
            reply = msgspec.json.decode(response.body, type=wire.LeaseReply)
        except msgspec.MsgspecError as error:
            raise CallFailed(f"its answer cannot be read: {error}") from None
        return {grant.tenant: grant for grant in reply.grants}

    def _take(self, call: _Call, grants: dict[str, wire.LeaseGrant], sent_at: float) -> None:
        now = time.monotonic()
        for gate, ask in call.shares:
            grant = grants.get(ask.tenant, wire.LeaseGrant(tenant=ask.tenant, slots=ask.in_use))
            with share_of(gate) as share:
                if share is not None:
                    share.granted(ask, grant, sent_at, now)

    def _give_up(self, tenant: str, waiting: _Waiting) -> None:
        """Let one request go on without an answer."""
        waiting.timer = None
        self.counts.waits["too_late"] += 1
        if waiting in (queue := self._waiting.get(tenant, [])):
            queue.remove(waiting)
        waiting.on_end()

    # -- telling -------------------------------------------------------------------------------

    def _note_failure(self, why: str, now: float) -> None:
        if self._failing_since is None:
            self._failing_since = now
            log.warning("lease_call_failed", why=why)
        self.counts.last_error = why
        self._pause_s = min(2 * self._pause_s or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._again_at = now + self._pause_s

    def _note_success(self) -> None:
        self._answered_at = time.monotonic()
        if self._failing_since is not None:
            log.info("lease_calls_work_again", after=self.last_error)
        self.counts.last_error = ""
        self._failing_since = None
        self._pause_s = self._again_at = 0.0

    def _judge_absence(self, now: float) -> None:
        """Tell all shares whether an answer can be expected: none came for as long as leases run,
        to lease calls or to reports."""
        reported_at = self.reported_at() or self._began_at
        is_gone = now - reported_at >= wire.LEASE_S or (
            self._failing_since is not None and now - self._failing_since >= wire.LEASE_S
        )
        for gate in self.fleet.gates.values():
            with share_of(gate) as share:
                if share is not None:
                    share.gone_at = now if is_gone else NEVER


def _end(waiting: dict[str, list[_Waiting]]) -> int:
    """Let requests go on whose call is over; give how many still waited for it."""
    ended = 0
    for queue in waiting.values():
        for one in queue:
            if one.timer is not None:
                one.timer.cancel()
                one.timer = None
                one.on_end()
                ended += 1
    return ended
