"""The fleet as this agent sees it: the current table and the live state behind it.

`Fleet` is the one mutable object that control and proxy share. Tables go in with `apply`; all that
a replica has learned (load, health, breaker) outlives the table as long as its address stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from routing_agent.core.ejection import may_eject
from routing_agent.core.fairness import FairShares
from routing_agent.core.gossip import TOLD_LIFE_S, Gossip, Told
from routing_agent.core.limits import TenantGate
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefill import Placement
from routing_agent.core.prefix_index import PrefixIndex
from routing_agent.core.profile import MOST_BLOCKS
from routing_agent.core.replica import Replica
from routing_agent.core.retries import RetryBudget
from routing_agent.core.ring import Ring
from routing_agent.core.sessions import Sessions
from routing_agent.core.shapes import ShapeMemory, TokenRatios
from routing_agent.core.speed import Speed
from routing_agent.core.table import Model, Table, compile_table
from routing_agent.core.waiting import WaitingLine
from routing_agent.core.zones import own_zone, set_apart
from routing_agent.wire import PREFIX_POLICIES, Endpoint, Pool, RoutingTable, Tenant

if TYPE_CHECKING:
    from routing_agent.core.chance import Chance
    from routing_agent.core.choose import Choice

# What an engine may have less of a prompt than it was believed to, before that means that it has
# dropped some: its blocks end elsewhere than ours, and tokens are not spread evenly.
MISSING_BLOCKS: Final = 3
MISSING_RATIO: Final = 0.15


@dataclass(frozen=True, slots=True)
class FleetChange:
    """What a table changed, by replica id."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # another endpoint record: state, weight, address, ...
    faults: tuple[str, ...] = ()  # rows of the table that were left out, and why


class Siblings(Protocol):
    """Chooses where several processes are one agent."""

    def choose(self, request: RouteRequest, *, now: float, chance: Chance) -> Choice:
        """Choose as `choose` does, by the load of all, and take the place that was found."""
        ...

    def take_place(self, waiting: int, limit: int) -> bool:
        """Take one of `limit` places in the queue of all, where `waiting` of this process wait."""
        ...

    def goes_first(self) -> bool:
        """Let another process know of room that was made, if who waits there comes first."""
        ...


class PoolState:
    """One pool at work: its replicas and what choices and retries remember."""

    __slots__ = (
        "_replicas_by_id",
        "_ring",
        "_seed",
        "bind_ahead_s",
        "budget",
        "cursor",
        "gossip",
        "index",
        "notes_placements",
        "numbered",
        "pool",
        "replicas",
        "sessions",
        "settings",
        "shares",
        "siblings",
        "spares",
        "speed",
        "tellers",
        "uses_prefixes",
        "zone",
    )

    def __init__(self, pool: Pool, replicas: Iterable[Replica], *, seed: int, now: float) -> None:
        self.budget = RetryBudget(pool.settings.retry_budget_ratio, now)
        self.cursor = 0
        self.shares = FairShares()
        self.sessions = Sessions()
        self.index = PrefixIndex()
        self.speed = Speed()  # of its replicas, taken together
        self.gossip: Gossip | None = None  # set where there are other agents to tell
        self.siblings: Siblings | None = None  # other processes that choose for this pool too
        self.spares: list[Replica] = []  # the least loaded at the last choice; see `shortlist`
        self.tellers: dict[str, float] = {}  # other agents, when each told last
        self.zone = ""  # of this agent, if some replicas are in another; see `stand_in`
        self.adopt(pool, replicas, seed=seed)

    def adopt(self, pool: Pool, replicas: Iterable[Replica], *, seed: int) -> None:
        """Take over what a new table says about this pool."""
        self.pool = pool
        self.settings = pool.settings
        self.budget.ratio = pool.settings.retry_budget_ratio
        self.replicas = list(replicas)
        self._replicas_by_id = {r.id: r for r in self.replicas}
        self.spares = []
        self._number()
        has_several, policy = len(self.replicas) > 1, pool.settings.policy
        self.uses_prefixes = has_several and policy in PREFIX_POLICIES
        self.notes_placements = self.uses_prefixes or (has_several and policy == "consistent_hash")
        holds = self.uses_prefixes and pool.overload == "queue"
        self.bind_ahead_s = pool.settings.bind_ahead_s if holds else 0.0
        self._ring: Ring | None = None  # built when first needed
        self._seed = seed

    def _number(self) -> None:
        for replica in self.replicas:
            replica.profile.join(self.index)
            replica.prefill.speed.join(self.speed)
            replica.prefill.look_again()
        self.numbered = {r.profile.number: r for r in self.replicas}

    def make_line(self) -> WaitingLine[Any]:
        """Make the queue of this process."""
        return WaitingLine(self.shares)

    def stand_in(self, zone: str) -> None:
        """Note where this agent is."""
        self.zone = zone if set_apart(self.replicas, zone, self.settings.zone_margin_s) else ""

    def ring(self) -> Ring:
        """Give the pool's hash ring, over all its replicas whatever their state."""
        if self._ring is None:
            nodes = self.settings.virtual_nodes
            self._ring = Ring(self._replicas_by_id, virtual_nodes=nodes, seed=self._seed)
        return self._ring

    def by_id(self, replica: str) -> Replica | None:
        """Give a replica of the pool."""
        return self._replicas_by_id.get(replica)

    def note_placed(
        self, request: RouteRequest, replica: Replica, *, now: float, shows_first_token: bool = True
    ) -> Placement:
        """Note that a request was sent to a replica: what it will compute, and hold from then on.

        Its placement goes to `replica.prefill.note_first_token` when the first token came, and to
        `give_up` on every way out (both may be called again).
        """
        lifetime_s = self.settings.session_lifetime_s
        self.sessions.note(request.session, replica.id, now=now, lifetime_s=lifetime_s)
        matching, tail_used_at = 0, 0.0
        if request.blocks:
            matching = replica.profile.matching(request.blocks)
            if matching:
                tail_used_at = replica.profile.used_at(request.blocks[matching - 1])
            replica.fit_profile(request.block_tokens)
            replica.profile.insert(request.blocks, now)
            replica.profile.expire(now - self.settings.profile_idle_s)
        uncached = round(request.uncached_tokens(matching))
        if self.gossip is not None:
            self.gossip.note(replica.id, request.blocks, matching, uncached)
            replica.hearsay.note_inserted(len(request.blocks) - matching, 0, now)
        placement = replica.prefill.place(uncached, now, shows_first_token=shows_first_token)
        placement.matching, placement.tail_used_at = matching, tail_used_at
        return placement

    def note_counted(
        self,
        request: RouteRequest,
        replica: Replica,
        placement: Placement,
        *,
        prompt_tokens: int,
        cached_tokens: int | None,
    ) -> None:
        """Compare what a replica was believed to have cached with what its engine counted.

        Engines drop what was not used for longest: where a block was missing, all that was last
        used before it is gone too, and is forgotten here. `None`: the engine did not say, which is
        a zero (vLLM leaves zeros out) once it has said so of another request.
        """
        if cached_tokens is not None:
            replica.cache.tells_cached = True
        elif not replica.cache.tells_cached:
            return
        expected = min(placement.matching * request.block_tokens, float(request.prompt_tokens))
        replica.cache.expected_tokens_total += round(expected)
        if not placement.matching or not prompt_tokens:
            return
        share = (cached_tokens or 0) / prompt_tokens
        found = share * request.prompt_tokens / request.block_tokens
        if placement.matching - found > MISSING_BLOCKS + MISSING_RATIO * placement.matching:
            replica.profile.expire(placement.tail_used_at)

    def has_choice(self, now: float) -> bool:
        """Say whether more than one replica may take requests."""
        found = 0
        for replica in self.replicas:
            if not replica.blocked or not replica.exclusion(now):
                found += 1
                if found > 1:
                    return True
        return False

    def tell(self, now: float) -> dict[str, Told]:
        """Give what other agents should know, by replica: what was placed since, what waits."""
        told = {} if self.gossip is None else self.gossip.take()
        for replica in self.replicas:
            waiting = replica.prefill.waiting
            if waiting:
                one = told.setdefault(replica.id, Told([]))
                one.waiting, one.waiting_tokens = waiting, replica.prefill.backlog_tokens(now)
        return told

    def hear(self, agent: str, told: Mapping[str, Told], *, now: float) -> None:
        """Take in what another agent told of the replicas of this pool."""
        if told:
            self.tellers[agent] = now
        for name, one in told.items():
            replica = self.by_id(name)
            if replica is not None:
                self.index.hear(one.hashes, replica.profile.bit, now)
                replica.hearsay.hear(agent, one, now)
                replica.prefill.count_work(one.work_tokens, now)

    def agents(self, now: float) -> int:
        """Count the agents that send requests to this pool, this one included."""
        self.tellers = {a: at for a, at in self.tellers.items() if now - at <= TOLD_LIFE_S}
        return 1 + len(self.tellers)

    def usable(self, now: float) -> int:
        """Count the replicas that may take requests."""
        return sum(not r.exclusion(now) for r in self.replicas)

    def awaits_replica(self) -> bool:
        """Say whether no replica serves and one may come: its requests wait for it."""
        if not self.pool.start_wait_s:
            return False
        return all(r.endpoint.state in ("warming", "draining") for r in self.replicas)

    def may_eject(self) -> bool:
        """Say whether one more replica may be taken out without passing the pool's ceiling."""
        return may_eject(
            ejected=sum(r.is_ejected() for r in self.replicas),
            replicas=len(self.replicas),
            ceiling_ratio=self.settings.eject_ceiling_ratio,
        )


class Fleet:
    """The current table and the replicas behind it. Empty until the first `apply`."""

    def __init__(self) -> None:
        self.table: Table | None = None
        self.wire_table: RoutingTable | None = None  # as received: for the disk copy and `state`
        self.replicas: dict[str, Replica] = {}
        self.leaving: list[Replica] = []  # gone from the table, streams still running
        self.pools: dict[str, PoolState] = {}
        self.gates: dict[str, TenantGate] = {}
        self.shapes = ShapeMemory()
        self.ratios = TokenRatios()
        self.generation = 0  # grows with every `apply`
        self.node = self.given_zone = ""  # where this agent runs

    def apply(self, table: RoutingTable, *, now: float, wall: float) -> FleetChange:
        """Make `table` the current one at once; `now` is monotonic, `wall` is Unix seconds.

        Nothing is checked against the table before: order and trust are the receiver's business.
        """
        compiled = compile_table(table)
        change = self._apply_replicas(compiled, now=now, wall=wall)
        self._apply_pools(compiled, now)
        self.ratios.keep_only(set(compiled.models))
        self._apply_gates(compiled, now)
        self.table = compiled
        self.wire_table = table
        self.generation += 1
        self.forget_empty()
        return change

    def gate(self, tenant: Tenant, now: float) -> TenantGate:
        """Give a tenant's gate."""
        gate = self.gates.get(tenant.name)
        if gate is None:
            gate = self.gates[tenant.name] = self.make_gate(tenant, now)
        return gate

    def models_without_replica(self, now: float) -> list[str]:
        """Name the models of the table that no replica of any of their pools can serve now."""
        models = () if self.table is None else self.table.models.values()
        return sorted(
            model.name
            for model in models
            if not any(self.pools[pool].usable(now) for pool in model.pools)
        )

    # What one process of several makes differently: see `routing_agent.workers`.

    def make_replica(self, endpoint: Endpoint, pool: Pool) -> Replica:
        """Make the runtime of a replica."""
        return Replica(endpoint, pool=pool.name, settings=pool.settings)

    def make_pool(
        self, pool: Pool, replicas: Iterable[Replica], *, seed: int, now: float
    ) -> PoolState:
        """Make the runtime of a pool."""
        return PoolState(pool, replicas, seed=seed, now=now)

    def make_gate(self, tenant: Tenant, now: float) -> TenantGate:
        """Make a tenant's gate."""
        return TenantGate(tenant.limits, now)

    def bytes_per_token(self, model: Model) -> float:
        """Give how many bytes of a prompt make a token: learned where lengths decide on pools."""
        told = model.bytes_per_token
        return self.ratios.ratio(model.name, told) if model.has_shapes else told

    def forget_empty(self) -> None:
        """Drop removed replicas whose last request has ended."""
        if self.leaving:
            self.leaving = [r for r in self.leaving if r.inflight_requests]

    def _apply_replicas(self, table: Table, *, now: float, wall: float) -> FleetChange:
        added: list[str] = []
        changed: list[str] = []
        replicas: dict[str, Replica] = {}
        for pool in table.pools.values():
            for endpoint in pool.endpoints:
                replica = self.replicas.get(endpoint.replica)
                if replica is None or replica.endpoint.url != endpoint.url:
                    (added if replica is None else changed).append(endpoint.replica)
                    replica = self.make_replica(endpoint, pool)
                    _ramp(replica, now=now, wall=wall)
                elif replica.endpoint != endpoint:
                    changed.append(endpoint.replica)
                replica.adopt(endpoint, pool=pool.name, settings=pool.settings, now=now)
                replicas[endpoint.replica] = replica
        most_blocks = max(MOST_BLOCKS // max(len(replicas), 1), 1)
        for replica in replicas.values():
            replica.most_blocks = most_blocks
        self._retire(replicas, now)
        removed = tuple(name for name in self.replicas if name not in replicas)
        self.replicas = replicas
        return FleetChange(tuple(added), removed, tuple(changed), table.faults)

    def _retire(self, replicas: dict[str, Replica], now: float) -> None:
        for name, replica in self.replicas.items():
            if replicas.get(name) is not replica:
                replica.leave(now)
                replica.profile.join(None)
                self.leaving.append(replica)

    def _apply_pools(self, table: Table, now: float) -> None:
        pools: dict[str, PoolState] = {}
        for name, pool in table.pools.items():
            replicas = [self.replicas[e.replica] for e in pool.endpoints]
            state = self.pools.get(name)
            if state is None:
                state = self.make_pool(pool, replicas, seed=table.hash_seed, now=now)
            else:
                state.adopt(pool, replicas, seed=table.hash_seed)
            pools[name] = state
        self.pools = pools
        zone = own_zone(self.node, self.given_zone, table.pools.values())
        for state in pools.values():
            state.stand_in(zone)

    def _apply_gates(self, table: Table, now: float) -> None:
        for name, gate in list(self.gates.items()):
            tenant = table.tenants.get(name)
            if tenant is not None:
                gate.adopt(tenant.limits, now)
            elif not gate.running:
                del self.gates[name]


def _ramp(replica: Replica, *, now: float, wall: float) -> None:
    ready_at = replica.endpoint.ready_at
    if ready_at:
        # The two clocks may differ: a start in the future counts as now.
        replica.ramp_from = now - max(wall - ready_at, 0.0)
