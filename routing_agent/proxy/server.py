"""The traffic port: starts, serves, drains and stops.

proxy = Proxy(fleet, metrics, on_finished=reporter.note)
await proxy.start("127.0.0.1", 9000)
...
cut = await proxy.drain(600.0)      # stop accepting, let requests end; then close
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable
from time import monotonic, time
from typing import Any, Final, cast

import structlog

from routing_agent import tls
from routing_agent.core.attention import Attention, next_tick_s
from routing_agent.core.chance import Chance
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.replica import Replica
from routing_agent.core.sampling import DEFAULT_THRESHOLD
from routing_agent.core.table import EMPTY_BODY_LIMIT_BYTES
from routing_agent.core.waiting import WaitingLine
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.proxy import life
from routing_agent.proxy.again import RetriedRequest
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.proxy.held import HeldRequest
from routing_agent.proxy.ids import IdSource, is_sound
from routing_agent.proxy.incoming import Incoming
from routing_agent.proxy.ingress import ClientConnection
from routing_agent.proxy.shadows import Shadows
from routing_agent.proxy.upstream import IDLE_LIMIT_S, EngineLink
from routing_agent.wire import PoolWaiting, RequestRecord, ShadowPair

log = structlog.get_logger(__name__)

# Connections waiting to be accepted: a burst of clients must not see resets.
BACKLOG: Final = 2048


class Proxy:
    """Carries OpenAI traffic between clients and the replicas of a `Fleet`.

    New tables need no call here: `Fleet.apply` is enough, the proxy notices within a tick (0.1 s).
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: Metrics,
        *,
        chance: Chance | None = None,
        attention: Attention | None = None,
        on_finished: Callable[[FinishedRequest], None] | None = None,
    ) -> None:
        self.fleet = fleet
        self.metrics = metrics
        self.on_finished = on_finished
        # Spreads load and jitter; nothing secret hangs on it.
        self.chance: Chance = chance or random.Random()  # noqa: S311
        self.attention = attention or Attention()  # shared with whoever else waits for engines
        self.ids = IdSource()
        self.engine_trust: ssl.SSLContext | None = None  # None: whom the system trusts
        self.clients: set[ClientConnection] = set()
        self.now = monotonic()  # as of the last tick
        self.unix_clock: Callable[[], float] = time  # the control plane's where there is one
        self.wall = self.unix_clock()
        self.on_record: Callable[[RequestRecord], None] | None = None  # gets the lives to keep
        self.on_pair: Callable[[ShadowPair], None] | None = None  # gets compared answers
        self.keep_below = DEFAULT_THRESHOLD  # of the hash of a request's id: see `core.sampling`
        # Lets a request wait for a lease call: tenant, tokens, what to do when it is over.
        self.wait_for_lease: Callable[[str, int, Callable[[], None]], None] | None = None
        self.loop: asyncio.AbstractEventLoop
        self.shadows = Shadows(self)
        metrics.shadows = self.shadows.outcomes
        self._exchanges: set[RetriedRequest] = set()
        self._links: dict[Replica, EngineLink] = {}
        self._lines: dict[str, WaitingLine[RetriedRequest]] = {}
        self.is_turn_due = False  # in some queue room was made, and nobody has had their turn yet
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._generation = -1
        self._is_draining = False
        self._idle: asyncio.Event = asyncio.Event()

    # -- life ----------------------------------------------------------------------------------

    async def start(
        self,
        host: str,
        port: int,
        *,
        reuse_port: bool = False,
        certificate: ssl.SSLContext | None = None,
    ) -> int:
        """Listen for clients, by TLS if there is a certificate; give the port (as of port 0)."""
        self.loop = asyncio.get_running_loop()
        self._server = await self.loop.create_server(
            lambda: cast(asyncio.Protocol, ClientConnection(self)),
            host,
            port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
            ssl=certificate,
            ssl_handshake_timeout=tls.HANDSHAKE_LIMIT_S if certificate is not None else None,
            ssl_shutdown_timeout=tls.SHUTDOWN_LIMIT_S if certificate is not None else None,
        )
        self.begin()
        server: Any = self._server  # its sockets: a tuple by asyncio, a list by uvloop
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def begin(self) -> None:
        """Be ready for connections that somebody else accepts, or that `start` will."""
        self.loop = asyncio.get_running_loop()
        self._tick()

    async def drain(self, timeout_s: float) -> int:
        """Stop accepting, let running requests end, close; give how many had to be cut off."""
        self._is_draining = True
        if self._server is not None:
            self._server.close()
        for client in list(self.clients):
            client.close_if_idle()
        self._note_if_idle()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("drain_limit_reached", requests=len(self._exchanges))
        cut = len(self._exchanges)
        await self.close()
        return cut

    async def close(self) -> None:
        """Close everything at once, with an explicit error to clients still waiting."""
        self._is_draining = True
        if self._server is not None:
            self._server.close()
        for exchange in list(self._exchanges):
            exchange.cut(_SHUTTING_DOWN)
        for client in list(self.clients):
            client.transport.close()
        self.shadows.close()
        for link in self._links.values():
            link.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self.attention.ended()
        # One turn of the loop, so that closed transports get their `connection_lost`.
        await asyncio.sleep(0)

    @property
    def open_connections(self) -> int:
        """How many client connections are open."""
        return len(self.clients)

    @property
    def running_requests(self) -> int:
        """How many requests are queued or under way."""
        return len(self._exchanges)

    def waiting(self) -> tuple[PoolWaiting, ...]:
        """Say who waits in which pool's queue."""
        now = monotonic()
        return tuple(
            PoolWaiting(pool=name, requests=len(line), oldest_s=_longest_wait_s(line, now))
            for name, line in self._lines.items()
            if line
        )

    @property
    def is_draining(self) -> bool:
        """Whether this proxy has stopped accepting."""
        return self._is_draining

    # -- for connections and exchanges ---------------------------------------------------------

    @property
    def body_limit(self) -> int:
        """Give the largest body any pool takes."""
        table = self.fleet.table
        return EMPTY_BODY_LIMIT_BYTES if table is None else table.body_limit_bytes

    def extra_paths(self) -> Iterable[str]:
        """Give the paths that pools have added."""
        table = self.fleet.table
        return () if table is None else table.extra_paths

    def link(self, replica: Replica) -> EngineLink:
        """Give the connections to a replica."""
        link = self._links.get(replica)
        if link is None:
            link = self._links[replica] = EngineLink(replica, self.engine_trust)
        return link

    def line(self, pool: str) -> WaitingLine[RetriedRequest]:
        """Give a pool's queue."""
        line = self._lines.get(pool)
        if line is None:
            known = self.fleet.pools.get(pool)  # None: it was removed while requests waited
            line = self._lines[pool] = WaitingLine() if known is None else known.make_line()
        return line

    def started(self, exchange: RetriedRequest) -> None:
        """Note a request that is under way."""
        self._exchanges.add(exchange)

    def finished(self, exchange: HeldRequest, record: FinishedRequest) -> None:
        """Count a request that ended, however it ended."""
        self._exchanges.discard(exchange)
        self.metrics.request_finished(record)
        if self.on_finished is not None:
            self.on_finished(record)
        self._note_if_idle()

    def keep(self, exchange: HeldRequest, done: FinishedRequest, now: float) -> None:
        """Hand the life of a request to whoever keeps it; that must never cost the request."""
        if self.on_record is None:
            return
        try:
            self.on_record(life.record_of(exchange, done, now=now, wall=self.unix_clock()))
        except Exception:
            log.exception("record_not_kept", request_id=done.request_id)

    def refused(self, incoming: Incoming, error: ErrorAnswer) -> bytes:
        """Keep a refusal that is a failure of ours; gives the header line with its request id."""
        own_id = self.ids.new()
        given = incoming.headers.get(b"x-request-id")
        request_id = given if given is not None and is_sound(given) else own_id
        if self.on_record is not None:
            wall = self.unix_clock()
            self.on_record(life.refusal(incoming, error, (own_id, request_id), wall=wall))
        return b"x-request-id: %b\r\n" % request_id

    def room_made(self, pool: PoolState) -> None:
        """Give the next in a pool's queue its turn."""
        if pool.siblings is not None and pool.siblings.goes_first():
            return
        line = self._lines.get(pool.pool.name)
        if line:
            self.is_turn_due = line.is_due = True
            self.loop.call_soon(self._wake, line)

    def wake(self, pool: PoolState) -> None:
        """Give the next in a pool's queue its turn now: another process has made room."""
        line = self._lines.get(pool.pool.name)
        if line:
            self._wake(line)

    def let_waiting_go_first(self) -> None:
        """Give the queues in which room was made their turns, before somebody new comes in."""
        self.is_turn_due = False
        for line in list(self._lines.values()):
            if line.is_due:
                self._wake(line)

    def let_line_go_first(self, pool: PoolState) -> None:
        """Give those that wait in a pool's queue a chance before somebody new comes in."""
        line = self._lines.get(pool.pool.name)
        if line:
            self._wake(line)

    # -- the coarse clock ----------------------------------------------------------------------

    def _tick(self) -> None:
        # One coarse clock instead of a timer per request: limits are seconds.
        now = self.now = monotonic()
        self._ticker = self.loop.call_later(next_tick_s(now), self._tick)
        self.wall = self.unix_clock()
        lost_s = self.attention.looked(now)
        if lost_s:
            self._forgive(lost_s)
        for exchange in [e for e in self._exchanges if e.deadline <= now]:
            exchange.deadline_passed()
        for client in [c for c in self.clients if c.deadline <= now]:
            client.deadline_passed()
        for link in self._links.values():
            if link.idle:
                link.close_idle(now - IDLE_LIMIT_S)
        if self.fleet.generation != self._generation:
            self._generation = self.fleet.generation
            self._table_changed()
        self._wake_queues()
        self._cut_overdue(now)
        self._leave_hung(now)
        self.metrics.settle()

    def _forgive(self, lost_s: float) -> None:
        """Give engines and clients the time in which we did not look at them."""
        for exchange in self._exchanges:
            exchange.forgive(lost_s)
        for client in self.clients:
            client.deadline += lost_s

    def _table_changed(self) -> None:
        """Drop connections to replicas that are gone; those under way go on."""
        current = set(self.fleet.replicas.values())
        for replica in [r for r in self._links if r not in current]:
            if not replica.inflight_requests:
                self._links.pop(replica).close()
        for name in [n for n in self._lines if n not in self.fleet.pools]:
            line = self._lines.pop(name)
            while (waiting := line.next()) is not None:
                waiting.cut(_POOL_GONE)
            line.turns_over()

    def _wake_queues(self) -> None:
        """Give queues a chance that no finished request gave them: new or recovered replicas."""
        for line in list(self._lines.values()):  # a turn may lead to another queue
            self._wake(line)

    @staticmethod
    def _wake(line: WaitingLine[RetriedRequest]) -> None:
        """Give those in a queue their turn until one finds no room.

        Replicas that hold an adapter can be full while others are not: who waits for it then lets
        the others pass.
        """
        now = monotonic()
        full: set[str] = set()  # adapters
        passed: list[RetriedRequest] = []
        line.is_due = False
        while (waiting := line.next()) is not None:
            if waiting.adapter in full:
                passed.append(waiting)
                continue
            waiting.turn_came(now)
            if waiting.is_queued:
                if not waiting.adapter:
                    break
                full.add(waiting.adapter)
        for waiting in passed:
            waiting.keep_place(line)
        line.turns_over()

    def _cut_overdue(self, now: float) -> None:
        """End what still runs on a replica whose drain limit has passed."""
        for exchange in list(self._exchanges):
            replica = exchange.bound_to
            if replica is None or replica.leaving_at is None:
                continue
            if now - replica.leaving_at > replica.settings.drain_limit_s:
                exchange.leave_replica(_DRAIN_LIMIT)

    def _leave_hung(self, now: float) -> None:
        """Fail over what engines that hang have not begun to answer."""
        hung = {r for r in self._links if r.inflight_requests and r.is_hung(now)}
        if not hung:
            return
        for exchange in list(self._exchanges):
            if exchange.bound_to in hung:
                exchange.leave_hung_engine(now)

    def _note_if_idle(self) -> None:
        if self._is_draining and not self._exchanges:
            self._idle.set()


def _longest_wait_s(line: WaitingLine[RetriedRequest], now: float) -> float:
    return max(now - (now if w.queued_at is None else w.queued_at) for w in line.waiting())


_SHUTTING_DOWN: Final = ErrorAnswer(
    "shutting_down", "This router is shutting down. Try again.", retry_after_s=1.0
)
_POOL_GONE: Final = ErrorAnswer(
    "no_replica", "The pool was removed while this request waited.", retry_after_s=1.0
)
_DRAIN_LIMIT: Final = ErrorAnswer(
    "shutting_down", "The replica's drain limit passed before this answer ended. Try again."
)
