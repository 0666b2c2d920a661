"""Late binding: when a request waits in its agent rather than in an engine."""

from __future__ import annotations

import msgspec
import pytest

from routing_agent import wire
from routing_agent.core.choose import choose
from routing_agent.core.explain import explain
from routing_agent.core.figures import EngineFigures
from routing_agent.core.fleet import PoolState
from routing_agent.core.gossip import TOLD_LIFE_S, Told
from routing_agent.core.holding import HELD, has_room
from routing_agent.core.policy import RouteRequest
from tests.agent.core.build import NOW, chance, fleet, pool, pool_state, settings


def asked(**changes: object) -> RouteRequest:
    request = RouteRequest(100, 1, prompt_tokens=100)
    request.may_wait = True
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def held(state: PoolState, **changes: object) -> bool:
    choice = choose(asked(**changes), state, now=NOW, chance=chance())
    assert choice.is_held == (choice.replica is None)
    assert (choice.reason == HELD.format(state.bind_ahead_s)) == choice.is_held
    return choice.is_held


def fill(state: PoolState, seconds: float, *replicas: int) -> None:
    for number in replicas:
        prefill = state.replicas[number].prefill
        prefill.place(round(prefill.tokens_per_s * seconds), NOW)


def test_a_request_waits_while_every_replica_has_more_than_the_bound_ahead() -> None:
    state = pool_state(2, policy="expected_ttft", bind_ahead_s=1.0)
    fill(state, 2.0, 0)
    assert not held(state)
    fill(state, 0.9, 1)
    assert not held(state)
    fill(state, 0.2, 1)
    assert held(state)
    assert not held(state, may_wait=False)
    assert not held(state, tried=("p0",))  # a retry goes on at once
    state.replicas[0].note_health(False, "off", NOW)
    assert held(state)
    state.replicas[1].prefill.clear()
    assert not held(state)


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": settings(policy="expected_ttft")},  # not asked for
        {"settings": settings(policy="least_tokens", bind_ahead_s=1.0)},  # nobody counts prompts
        {"overload": "reject", "settings": settings(policy="expected_ttft", bind_ahead_s=1.0)},
    ],
)
def test_pools_that_do_not_ask_for_it_or_have_no_queue_hold_nothing_back(
    changes: dict[str, object],
) -> None:
    state = fleet(pool(size=2, **changes)).pools["p"]
    assert state.bind_ahead_s == 0
    fill(state, 100.0, 0, 1)
    assert not held(state)


def test_several_agents_share_the_room() -> None:
    state = pool_state(2, policy="expected_ttft", bind_ahead_s=1.0)
    fill(state, 0.4, 0, 1)
    assert not held(state)
    for agent in ("b", "c"):
        state.hear(agent, {"p0": Told([])}, now=NOW)
    state.hear("idle", {}, now=NOW)
    assert state.agents(NOW) == 3
    assert held(state)  # 0.4 s of ours are more than a third
    assert state.agents(NOW + TOLD_LIFE_S + 1) == 1
    one = state.replicas[0]
    one.prefill.clear()
    assert has_room(one, 1.0, 3, NOW)
    one.note_scrape(EngineFigures(running=3, waiting=3), NOW)
    one.prefill.mean_tokens = one.prefill.tokens_per_s
    assert not has_room(one, 1.0, 3, NOW)  # what others have in it counts
    stale = NOW + one.settings.scrape_stale_s + 1
    assert has_room(one, 1.0, 3, stale)  # not known: our share alone


def test_explain_says_that_it_would_wait() -> None:
    made = fleet(pool(size=2, settings=settings(policy="expected_ttft", bind_ahead_s=1.0)),
                 tenants=(wire.Tenant(name="t"),))  # fmt: skip
    fill(made.pools["p"], 3.0, 0, 1)
    told = explain(made, wire.ExplainRequest(model="m", tenant="t", prompt="hi"), now=NOW)
    assert (told.replica, told.error, told.reason) == ("", "", HELD.format(1.0))
    assert msgspec.json.decode(msgspec.json.encode(told), type=wire.Explanation) == told
