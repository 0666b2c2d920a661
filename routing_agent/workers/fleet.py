"""The fleet of one process of several: load, limits and sessions are those of all of them.

What a process does itself goes on as in `core`; beside it every change of its own load is written
to its cells, and before a choice those of the others are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from routing_agent.core.chance import Chance
from routing_agent.core.choose import FULL, Choice, choose
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.limits import TenantGate
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefill import Placement
from routing_agent.core.prefix_index import told_places
from routing_agent.core.replica import DoubtSource, Replica
from routing_agent.core.table import Table
from routing_agent.wire import Endpoint, Pool, PoolSettings, Tenant
from routing_agent.workers.gate import SharedGate, has_any
from routing_agent.workers.memory import (
    REPLICA_CELLS,
    REPLICA_LOCKS,
    REQUESTS,
    SUPERVISOR,
    TOKENS,
    SharedMemory,
)
from routing_agent.workers.prefill import SharedPrefill, WatchedPrefill, WatchedProfile
from routing_agent.workers.ring import Placed, Ring
from routing_agent.workers.slots import Slots, replica_key

# Of a pool this large not every replica is looked at for every choice.
SMALL_POOL: Final = 64
LOOK_AGAIN_S: Final = 0.005
# A place that was free when it was chosen and taken when it was to be had: so often another.
MOST_CHOICES: Final = 4


# A replica, what a request told of it, when, whether it was a trial, and whether it may open.
Publish = Callable[[str, str, float, tuple[bool, bool]], None]


class SharedReplica(Replica):
    """A replica that other processes send requests to as well.

    `inflight_requests` and `inflight_tokens` are everybody's, as of the last `look`.
    """

    __slots__ = (
        "_claimed",
        "_ints",
        "_memory",
        "_own",
        "_row",
        "_row_end",
        "own_requests",
        "own_tokens",
        "publish",
        "slot",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        pool: str,
        settings: PoolSettings,
        memory: SharedMemory,
        place: tuple[int, int],
    ) -> None:
        super().__init__(endpoint, pool=pool, settings=settings)
        self.slot, worker = place
        self._memory = memory
        self._ints = memory.ints
        self._row = memory.replica(self.slot)
        self._row_end = self._row + memory.replica_words
        # The supervisor has no cells: it sends nothing.
        self._own = -1 if worker < 0 else self._row + worker * REPLICA_CELLS
        self._claimed = 0
        self.own_requests = self.own_tokens = 0
        self.publish: Publish | None = None  # tells the other processes what is rare
        if self._own >= 0:
            self.prefill = SharedPrefill(memory, self._own)
        else:
            self.prefill = WatchedPrefill(memory, self._row)
            self.profile = WatchedProfile()

    @property
    def may_send(self) -> bool:
        """Whether this process sends requests, rather than watch those that do."""
        return self._own >= 0

    def look(self) -> None:
        """Take in what the other processes have here."""
        row: list[int] = self._ints[self._row : self._row_end].tolist()
        self.inflight_requests = sum(row[REQUESTS::REPLICA_CELLS])
        self.inflight_tokens = sum(row[TOKENS::REPLICA_CELLS])
        prefill = self.prefill
        if isinstance(prefill, SharedPrefill):
            prefill.look(row, self._own - self._row)

    def claim(self) -> bool:
        """Take a place for the next `begin`, unless others have taken the last one."""
        if self.ceiling is None or self._own < 0:
            return True
        self._memory.lock(REPLICA_LOCKS + self.slot)
        try:
            self.look()
            if not self.has_room():
                return False
            self._claimed += 1
            self._ints[self._own + REQUESTS] = self.own_requests + self._claimed
            return True
        finally:
            self._memory.unlock(REPLICA_LOCKS + self.slot)

    def begin(self, tokens: int, now: float) -> bool:
        """Charge a request to this replica; true if it is the breaker's trial."""
        if self._claimed:
            self._claimed -= 1
        self.own_requests += 1
        self.own_tokens += tokens
        self._ints[self._own + REQUESTS] = self.own_requests + self._claimed
        self._ints[self._own + TOKENS] = self.own_tokens
        trial = super().begin(tokens, now)
        if trial:
            self._publish("began", now, trial, False)
        return trial

    def release(self, tokens: int) -> None:
        """Give back what `begin` charged."""
        self.own_requests -= 1
        self.own_tokens -= tokens
        self._ints[self._own + REQUESTS] = self.own_requests + self._claimed
        self._ints[self._own + TOKENS] = self.own_tokens
        super().release(tokens)

    def note_success(self, now: float, *, trial: bool) -> None:
        """Note an answer that proves the engine works."""
        if self.breaker.state != "closed":
            super().note_success(now, trial=trial)
            self._publish("succeeded", now, trial, False)

    def note_failure(self, now: float, *, trial: bool, may_open: bool) -> bool:
        """Note a failure of the engine; true if that opened its breaker."""
        opened = super().note_failure(now, trial=trial, may_open=may_open)
        self._publish("failed", now, trial, may_open)
        return opened

    def note_abandoned(self, *, trial: bool) -> None:
        """Note a request that ended without telling anything about the engine."""
        super().note_abandoned(trial=trial)
        if trial:
            self._publish("abandoned", 0.0, trial, False)

    def note_doubt(self, source: DoubtSource, reason: str) -> bool:
        """Keep new requests away for `reason`, or let them come again (""); true if it changed."""
        changed = super().note_doubt(source, reason)
        if changed and reason and source == "answers":
            self._publish(reason, 0.0, False, False)
        return changed

    def take_over_ramp(self, since: float | None) -> None:
        """Be in slow start since then, or in none, as the supervisor has seen it."""
        if since is None or self.ramp_from is None or since > self.ramp_from:
            self.ramp_from = since
        self._judge()

    def sibling_judged(self, verdict: str, at: float, how: tuple[bool, bool]) -> None:
        """Take in what a request of another process told of the engine; see `Breaker`."""
        trial, may_open = how
        breaker = self.breaker
        if verdict == "failed":
            breaker.failed(at, trial=trial, may_open=may_open)
        elif verdict == "abandoned":
            breaker.abandoned(trial=trial)
        elif verdict == "began":
            breaker.began(at)
        elif breaker.succeeded(trial=trial):
            self.ramp_from = at
        self._judge()

    def _publish(self, verdict: str, at: float, trial: bool, may_open: bool) -> None:
        if self.publish is not None and self._own >= 0:
            self.publish(self.id, verdict, at, (trial, may_open))

    def tokens_of_others(self, now: float) -> float | None:
        """Estimate the prompt tokens that others have waiting here; None: nothing is known."""
        others = super().tokens_of_others(now)
        prefill = self.prefill
        if prefill.queued_tokens or not isinstance(prefill, SharedPrefill):
            return others  # what other processes sent is in its backlog
        if not prefill.others_queued_tokens:
            return others
        return (others or 0.0) + prefill.backlog_tokens(now)


class SharedPool(PoolState):
    """A pool for which other processes choose as well."""

    __slots__ = ("_bus", "_looked_at", "slot")

    def __init__(
        self,
        pool: Pool,
        replicas: Iterable[Replica],
        *,
        seed: int,
        now: float,
        shared: tuple[Bus, int],
    ) -> None:
        self._bus, self.slot = shared
        self._looked_at = 0.0
        super().__init__(pool, replicas, seed=seed, now=now)
        self.siblings = self

    def choose(self, request: RouteRequest, *, now: float, chance: Chance) -> Choice:
        """Choose by the load of all processes, and take the place that was found."""
        self._bus.catch_up(now)
        self.look(now)
        choice = choose(request, self, now=now, chance=chance)
        for _ in range(MOST_CHOICES):
            replica = choice.replica
            if not isinstance(replica, SharedReplica) or replica.claim():
                return choice
            choice = choose(request, self, now=now, chance=chance)
        taken = Choice(None, reason=FULL)
        taken.is_full = True
        return taken

    def note_placed(
        self, request: RouteRequest, replica: Replica, *, now: float, shows_first_token: bool = True
    ) -> Placement:
        """Note that a request was sent to a replica, and let the other processes know."""
        placement = super().note_placed(
            request, replica, now=now, shows_first_token=shows_first_token
        )
        if isinstance(replica, SharedReplica):
            blocks = request.blocks
            inserted = len(blocks) - placement.matching
            if self.gossip is None:
                replica.hearsay.note_inserted(inserted, 0, now)
            names = (self.slot, replica.slot, request.session)
            counts = (inserted, placement.uncached_tokens, request.block_tokens)
            self._bus.tell(Placed(names, counts, blocks))
        return placement

    def heard(self, replica: SharedReplica, placed: Placed, now: float) -> None:
        """Take in what another process placed."""
        lifetime_s = self.settings.session_lifetime_s
        self.sessions.note(placed.session, replica.id, now=now, lifetime_s=lifetime_s)
        replica.hearsay.note_inserted(placed.inserted_blocks, 0, now)
        replica.prefill.count_work(placed.work_tokens, now)
        blocks = placed.blocks
        if blocks and replica.may_send:
            replica.fit_profile(placed.block_tokens)
            replica.profile.insert(blocks, now)
            replica.profile.expire(now - self.settings.profile_idle_s)
        if self.gossip is not None:
            told = [blocks[place - 1] for place in told_places(len(blocks))]
            self.gossip.add(replica.id, told, placed.inserted_blocks, placed.work_tokens)

    def look(self, now: float) -> None:
        """Take in what the other processes have under way."""
        if len(self.replicas) > SMALL_POOL:
            if now - self._looked_at < LOOK_AGAIN_S:
                return
            self._looked_at = now
        for replica in self.replicas:
            if isinstance(replica, SharedReplica):
                replica.look()


class Bus:
    """What this process places, for the others, and what they do."""

    def __init__(self, memory: SharedMemory, worker: int) -> None:
        self._own = None if worker == SUPERVISOR else Ring(memory, worker)
        self._others = [Ring(memory, n) for n in range(memory.workers) if n != worker]
        self._pools: dict[int, SharedPool] = {}
        self._replicas: dict[int, SharedReplica] = {}

    @property
    def lost(self) -> int:
        """How often something of another process was written over before it was read."""
        return sum(ring.lost for ring in self._others)

    def tell(self, placed: Placed) -> None:
        """Tell the others."""
        if self._own is not None:
            self._own.write(placed)

    def catch_up(self, now: float) -> None:
        """Take in what the others told since the last time."""
        for ring in self._others:
            if ring.has_news:
                for placed in ring.read():
                    pool = self._pools.get(placed.pool)
                    replica = self._replicas.get(placed.replica)
                    if pool is not None and replica is not None:
                        pool.heard(replica, placed, now)

    def follow(self, pools: Iterable[PoolState], replicas: Iterable[Replica]) -> None:
        """Know a new table's pools and replicas by their slots."""
        self._pools = {pool.slot: pool for pool in pools if isinstance(pool, SharedPool)}
        self._replicas = {r.slot: r for r in replicas if isinstance(r, SharedReplica)}


class SharedFleet(Fleet):
    """The fleet of one process; `worker` is its number, -1 for the supervisor."""

    def __init__(self, memory: SharedMemory, worker: int) -> None:
        super().__init__()
        self.memory = memory
        self.worker = worker
        self.bus = Bus(memory, worker)
        self.slots = Slots({}, {}, {})
        self.publish: Publish | None = None

    def make_replica(self, endpoint: Endpoint, pool: Pool) -> Replica:
        """Make the runtime of a replica."""
        slot = self.slots.replicas.get(replica_key(endpoint))
        if slot is None:
            return super().make_replica(endpoint, pool)
        replica = SharedReplica(
            endpoint,
            pool=pool.name,
            settings=pool.settings,
            memory=self.memory,
            place=(slot, self.worker),
        )
        replica.publish = self.publish
        return replica

    def make_pool(
        self, pool: Pool, replicas: Iterable[Replica], *, seed: int, now: float
    ) -> PoolState:
        """Make the runtime of a pool."""
        slot = self.slots.pools.get(pool.name)
        if slot is None:
            return super().make_pool(pool, replicas, seed=seed, now=now)
        return SharedPool(pool, replicas, seed=seed, now=now, shared=(self.bus, slot))

    def make_gate(self, tenant: Tenant, now: float) -> TenantGate:
        """Make a tenant's gate."""
        slot = self.slots.tenants.get(tenant.name)
        if slot is None:
            return super().make_gate(tenant, now)
        return SharedGate(tenant.limits, now, self.memory, slot, self.worker)

    def _apply_gates(self, table: Table, now: float) -> None:
        super()._apply_gates(table, now)
        if self.worker == SUPERVISOR:  # so that it follows limits, and asks for shares of them
            for tenant in table.tenants.values():
                if has_any(tenant.limits):
                    self.gate(tenant, now)

    def _apply_pools(self, table: Table, now: float) -> None:
        super()._apply_pools(table, now)
        self.bus.follow(self.pools.values(), self.replicas.values())

    def look(self) -> None:
        """Take in what all processes have under way, at every replica."""
        for replica in self.replicas.values():
            if isinstance(replica, SharedReplica):
                replica.look()
        for replica in self.leaving:
            if isinstance(replica, SharedReplica):
                replica.look()
