"""Zones: an agent stays in its own until the others would begin sooner by more than the margin."""

from __future__ import annotations

import pytest

from routing_agent import wire
from routing_agent.core.choose import Choice, choose
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.policy import RouteRequest
from tests.agent.core.build import NOW, chance, endpoint, pool, settings, table

BLOCKS = tuple(range(1, 41))


def placed(
    zones: str, *, node: str = "", given: str = "", policy: str = "expected_ttft", **changes: float
) -> PoolState:
    """A pool with a replica in each zone of `zones` (- is none), and an agent somewhere."""
    fleet = Fleet()
    fleet.node, fleet.given_zone = node, given
    endpoints = tuple(
        endpoint(f"p{i}", zone="" if zone == "-" else zone, node=f"n{i}")
        for i, zone in enumerate(zones)
    )
    row = pool(endpoints=endpoints, settings=settings(policy=policy, **changes))
    fleet.apply(table(row), now=NOW, wall=NOW)
    return fleet.pools["p"]


def asked(session: int = 1, **changes: object) -> RouteRequest:
    fields = {"tokens": 100, "session": session, "prompt_tokens": 2560, "block_tokens": 64.0}
    return RouteRequest(**{**fields, **changes})  # type: ignore[arg-type]


def chosen(state: PoolState, request: RouteRequest) -> Choice:
    choice = choose(request, state, now=NOW, chance=chance(), explain=True)
    assert choice.replica is not None
    return choice


@pytest.mark.parametrize(
    ("zones", "node", "given", "margin_s", "zone"),
    [
        ("ab", "n1", "a", 0.1, "b"),  # as the table says
        ("ab", "n9", "a", 0.1, "a"),  # as the agent was told
        ("ab", "", "a", 0.1, "a"),
        ("-b", "n0", "a", 0.1, "a"),
        ("ab", "n9", "", 0.1, ""),
        ("ab", "n1", "", 0.0, ""),  # zones do not count
        ("aa", "n1", "", 0.1, ""),  # all here
        ("bb", "n9", "a", 0.1, ""),  # all elsewhere
        ("a-", "n0", "", 0.1, ""),  # what has none is nowhere else
    ],
)
def test_zones_count_where_some_replicas_are_here_and_some_elsewhere(
    zones: str, node: str, given: str, margin_s: float, zone: str
) -> None:
    state = placed(zones, node=node, given=given, zone_margin_s=margin_s)
    assert state.zone == zone
    far = [bool(r.detour_s) for r in state.replicas]
    assert far == [bool(zone and r.endpoint.zone and r.endpoint.zone != zone)
                   for r in state.replicas]  # fmt: skip


def test_a_request_leaves_its_zone_for_the_margin_for_a_prefix_or_if_it_must() -> None:
    state = placed("abb", given="a", zone_margin_s=1.0)
    here, there = state.replicas[:2]
    rate = here.prefill.tokens_per_s
    for session in range(20):
        choice = chosen(state, asked(session))
        assert (choice.replica, choice.spill) == (here, "")
    by_id = {c.replica: c.terms for c in choice.candidates}
    assert by_id["p1"]["other_zone_s"] == 1.0
    assert "other_zone_s" not in by_id["p0"]
    here.prefill.place(round(rate * 0.5), NOW)
    assert chosen(state, asked()).replica is here
    here.prefill.place(round(rate * 0.7), NOW)
    choice = chosen(state, asked())
    assert (choice.replica is not here, choice.spill) == (True, "load")
    assert choice.reason.endswith("; zone 'a' is slower by more than the margin")
    here.prefill.clear()
    there.profile.resize(100)
    there.profile.insert(BLOCKS, NOW)
    choice = chosen(state, asked(blocks=BLOCKS, prompt_tokens=25_600, block_tokens=640.0))
    assert (choice.replica, choice.spill) == (there, "prefix")
    here.note_health(False, "off", NOW)
    choice = chosen(state, asked())
    assert (choice.replica is not here, choice.spill) == (True, "no_replica")
    state.replicas[2].note_health(False, "off", NOW)
    choice = chosen(state, asked())
    assert (choice.replica, choice.route, choice.spill) == (there, "only", "no_replica")


@pytest.mark.parametrize("policy", ["round_robin", "least_tokens", "consistent_hash"])
def test_other_policies_choose_in_their_zone_until_it_has_more_to_do(policy: str) -> None:
    state = placed("aabb", given="a", policy=policy, zone_margin_s=1.0)
    here = state.replicas[:2]
    for session in range(20):
        assert chosen(state, asked(session)).replica in here
    rate = round(here[0].prefill.tokens_per_s)
    for replica in here:
        replica.begin(rate * 2, NOW)
    told = [chosen(state, asked(session)) for session in range(20)]
    left = [choice for choice in told if choice.replica not in here]
    assert left
    assert {choice.spill for choice in left} == {"load"}
    for replica in here:
        replica.release(rate * 2)
    state.sessions.note(7, "p3", now=NOW, lifetime_s=60.0)
    assert chosen(state, asked(7)).replica in ([state.replicas[3]] if policy == "consistent_hash"
                                               else state.replicas)  # fmt: skip
    assert wire.PoolSettings().zone_margin_s == 0.1
