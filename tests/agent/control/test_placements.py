"""What agents tell one another of placements: heard once, by those whom it concerns."""

from __future__ import annotations

import msgspec

from routing_agent import wire
from routing_agent.control.placements import PlacementExchange
from routing_agent.core.expected_ttft import costs_of
from routing_agent.core.fleet import Fleet
from routing_agent.core.policy import RouteRequest
from tests.agent.core import build
from tests.agent.core.build import NOW

BLOCKS = tuple(range(2**63, 2**63 + 8))


def agent(policy: str = "expected_ttft") -> tuple[Fleet, PlacementExchange]:
    fleet = build.fleet(build.pool(size=2, settings=build.settings(policy=policy)))
    for replica in fleet.replicas.values():
        replica.note_health(True, "", NOW)
    return fleet, PlacementExchange(fleet)


def asked() -> RouteRequest:
    return RouteRequest(600, 5, prompt_tokens=512, blocks=BLOCKS, block_tokens=64.0)


def over_the_wire(
    number: int, placed: tuple[wire.Placed, ...] | None
) -> tuple[wire.AgentPlaced, ...]:
    told = wire.AgentPlaced(agent="agt-1", number=number, placed=placed or ())
    return (msgspec.json.decode(msgspec.json.encode(told), type=wire.AgentPlaced),)


def test_what_one_agent_placed_another_finds() -> None:
    (one, ours), (other, theirs) = agent(), agent()
    assert ours.take(NOW) == ()
    ours.hear((wire.AgentPlaced(agent="agt-2", number=1),), NOW)  # there is another one
    one.pools["p"].note_placed(asked(), one.replicas["p1"], now=NOW)
    told = over_the_wire(7, ours.take(NOW))
    theirs.hear(told, NOW)
    pool = other.pools["p"]
    costs = {c.replica.id: c for c in costs_of(asked(), pool.replicas, pool, NOW)}
    assert costs["p1"].uncached < costs["p0"].uncached
    heard = other.replicas["p1"].prefill.recent_work(NOW)
    theirs.hear(told, NOW)
    assert other.replicas["p1"].prefill.recent_work(NOW) == heard, "once, by the report's number"


def test_nothing_is_kept_for_nobody_or_for_pools_without_prefixes() -> None:
    fleet, exchange = agent()
    exchange.hear((wire.AgentPlaced(agent="agt-2", number=1),), NOW)
    assert fleet.pools["p"].gossip is not None
    exchange.hear((), NOW)
    assert fleet.pools["p"].gossip is None
    plain, none = agent("least_tokens")
    assert none.take(NOW) is None
    odd = wire.Placed(pool="p", replica="p0", hashes=b"123")
    gone = wire.Placed(pool="gone", replica="x")
    none.hear((wire.AgentPlaced(agent="agt-2", number=1, placed=(odd, gone)),), NOW)
    assert plain.pools["p"].gossip is None
    exchange.hear((wire.AgentPlaced(agent="agt-2", number=2, placed=(odd, gone)),), NOW)
