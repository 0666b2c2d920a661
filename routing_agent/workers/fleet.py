"""The fleet of one process of several: load, limits and sessions are those of all of them.

What a process does itself goes on as in `core`; beside it every change of its own load is written
to its cells, and before a choice those of the others are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from routing_agent.core.chance import Chance
from routing_agent.core.choose import FULL, Choice, choose
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.limits import TenantGate
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefill import Placement
from routing_agent.core.prefix_index import told_places
from routing_agent.core.replica import Replica
from routing_agent.core.table import Table
from routing_agent.core.waiting import WaitingLine
from routing_agent.wire import Endpoint, Pool, Tenant
from routing_agent.workers.gate import SharedGate, has_any
from routing_agent.workers.line import Places, SharedLine, SharedShares
from routing_agent.workers.memory import (
    SUPERVISOR,
    SharedMemory,
)
from routing_agent.workers.placed import Placed
from routing_agent.workers.replica import Publish, SharedReplica
from routing_agent.workers.ring import Ring
from routing_agent.workers.slots import Slots, replica_key

# A choice knows what others did up to so long ago, longer where there are more replicas to look at:
# a look takes a microsecond for each. Engines take a thousand times longer for a prompt.
LOOK_PAUSE_S: Final = 0.001
LOOK_PAUSE_A_REPLICA_S: Final = 0.00005
LONGEST_LOOK_PAUSE_S: Final = 0.02
# A place that was free when it was chosen and taken when it was to be had: so often another.
MOST_CHOICES: Final = 4


class SharedPool(PoolState):
    """A pool for which other processes choose as well."""

    __slots__ = ("_bus", "_look_pause_s", "_looked_at", "_places", "own_moves", "slot")

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
        self._places = self._bus.places(self.slot)
        self._looked_at = self._look_pause_s = 0.0
        self.own_moves = 0  # of sessions by requests of this process, not yet told
        super().__init__(pool, replicas, seed=seed, now=now)
        self.siblings = self
        shares = SharedShares()
        shares.on_charge = self._charged
        self.shares = shares

    def adopt(self, pool: Pool, replicas: Iterable[Replica], *, seed: int) -> None:
        """Take over what a new table says about this pool."""
        super().adopt(pool, replicas, seed=seed)
        pause_s = max(LOOK_PAUSE_S, LOOK_PAUSE_A_REPLICA_S * len(self.replicas))
        self._look_pause_s = min(pause_s, LONGEST_LOOK_PAUSE_S)

    def choose(self, request: RouteRequest, *, now: float, chance: Chance) -> Choice:
        """Choose by the load of all processes, and take the place that was found."""
        is_new = self.look(now)
        choice = choose(request, self, now=now, chance=chance)
        if choice.replica is None and not is_new:  # there may be room by now
            self._looked_at = 0.0
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

    def make_line(self) -> WaitingLine[Any]:
        """Make the queue of this process."""
        return SharedLine(self.shares, self._places)

    def take_place(self, waiting: int, limit: int) -> bool:
        """Take one of `limit` places in the queue of all, where `waiting` of this process wait."""
        return self._places.take(waiting, limit)

    def goes_first(self) -> bool:
        """Let another process know of room that was made, if who waits there comes first."""
        first = self._places.first()
        if first is None or first == self._bus.worker:
            return False
        if self._bus.on_room is not None:
            self._bus.on_room(self.pool.name, first)
        return True

    def _charged(self, tenant: str, amount: float) -> None:
        if self._bus.on_charge is not None:
            self._bus.on_charge(self.pool.name, tenant, amount)

    def note_placed(
        self, request: RouteRequest, replica: Replica, *, now: float, shows_first_token: bool = True
    ) -> Placement:
        """Note that a request was sent to a replica, and let the other processes know."""
        moved = self.sessions.moved_total
        placement = super().note_placed(
            request, replica, now=now, shows_first_token=shows_first_token
        )
        self.own_moves += self.sessions.moved_total - moved
        if isinstance(replica, SharedReplica):
            blocks = request.blocks
            inserted = len(blocks) - placement.matching
            if self.gossip is None and not replica.hearsay.is_alone:
                replica.hearsay.note_inserted(inserted, 0, now)
            work, size = placement.uncached_tokens, request.block_tokens
            self._bus.tell(
                Placed(self.slot, replica.slot, request.session, inserted, work, size, blocks)
            )
        return placement

    def heard(self, replica: SharedReplica, placed: Placed, now: float) -> None:
        """Take in what another process placed; the supervisor only passes it on."""
        blocks = placed.blocks
        if self.gossip is not None:
            told = [blocks[place - 1] for place in told_places(len(blocks))]
            self.gossip.add(replica.id, told, placed.inserted_blocks, placed.work_tokens)
        if not replica.may_send:
            return
        lifetime_s = self.settings.session_lifetime_s
        self.sessions.note(placed.session, replica.id, now=now, lifetime_s=lifetime_s)
        if not replica.hearsay.is_alone:
            replica.hearsay.note_inserted(placed.inserted_blocks, 0, now)
        replica.prefill.count_work(placed.work_tokens, now)
        if blocks:
            replica.fit_profile(placed.block_tokens)
            replica.profile.insert(blocks, now)
            replica.profile.expire(now - self.settings.profile_idle_s)

    def look(self, now: float) -> bool:
        """Take in what the other processes do, unless that was just done; say whether."""
        if now - self._looked_at < self._look_pause_s:
            return False
        self._looked_at = now
        self._bus.catch_up(now)
        for replica in self.replicas:
            if isinstance(replica, SharedReplica):
                replica.look()
        return True


class Bus:
    """What this process places, for the others, and what they do."""

    def __init__(self, memory: SharedMemory, worker: int) -> None:
        self._own = None if worker == SUPERVISOR else Ring(memory, worker)
        self._others = [Ring(memory, n) for n in range(memory.workers) if n != worker]
        self._memory = memory
        self.worker = worker
        # Both for what is rare: a pool and a worker, a pool, a tenant and an amount.
        self.on_room: Callable[[str, int], None] | None = None
        self.on_charge: Callable[[str, str, float], None] | None = None
        self._pools: dict[int, SharedPool] = {}
        self._replicas: dict[int, SharedReplica] = {}

    @property
    def lost(self) -> int:
        """How often something of another process was written over before it was read."""
        return sum(ring.lost for ring in self._others)

    def places(self, slot: int) -> Places:
        """Give the cells of a pool's queue."""
        return Places(self._memory, slot, max(self.worker, 0))

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

    def watch(self, now: float) -> None:
        """Take in what the workers told, if there are other agents to pass it on to."""
        if any(pool.gossip is not None for pool in self._pools.values()):
            self.catch_up(now)
        else:
            for ring in self._others:
                ring.skip()

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

    def take_moves(self) -> dict[str, int]:
        """Give how many sessions this process moved since the last call, by pool."""
        moves: dict[str, int] = {}
        for name, pool in self.pools.items():
            if isinstance(pool, SharedPool) and pool.own_moves:
                moves[name], pool.own_moves = pool.own_moves, 0
        return moves

    def look(self) -> None:
        """Take in what all processes have under way, at every replica."""
        for replica in self.replicas.values():
            if isinstance(replica, SharedReplica):
                replica.look()
        for replica in self.leaving:
            if isinstance(replica, SharedReplica):
                replica.look()
