"""How busy a pool is, and what saved work counts for in it."""

from __future__ import annotations

import pytest

from routing_agent.core.choose import choose
from routing_agent.core.demand import BUSY, LIFE_S, Demand
from routing_agent.core.policy import RouteRequest
from routing_agent.core.speed import Speed
from tests.agent.core.build import NOW, chance, endpoint, pool_state, table
from tests.agent.core.build import fleet as fleet_of
from tests.agent.core.build import pool as pool_row

BLOCKS = tuple(range(40))
REQUEST = RouteRequest(2816, 1, prompt_tokens=2560, blocks=BLOCKS, block_tokens=64.0)


def dial(pool):
    choice = choose(REQUEST, pool, now=NOW, chance=chance(), explain=True)
    return {c.terms["hit_dial"] for c in choice.candidates}


def test_demand_is_a_share_of_what_the_serving_replicas_can_compute_and_fades():
    demand = Demand(Speed())
    demand.replicas = 4
    at = 1000.0
    for _ in range(400):  # two minutes of one replica's work for four
        at += 0.3
        demand.note(0.3 * demand.speed.tokens_per_s, at)
    assert demand.usage(at) == pytest.approx(0.25, rel=0.05)
    assert demand.usage(at + LIFE_S) == pytest.approx(0.25 / 2.718, rel=0.05)
    demand.look_again(at)
    assert demand.busy == pytest.approx(0.25 / BUSY, rel=0.05)
    demand.note(1e9, at)
    demand.look_again(at)
    assert demand.busy == 1.0


def test_saved_work_counts_for_itself_in_an_idle_pool_and_by_the_dial_in_a_busy_one():
    pool = pool_state(2, policy="expected_ttft", hit_dial=3.0)
    warm, idle = pool.replicas
    warm.fit_profile(64.0)
    warm.profile.insert(BLOCKS, NOW)
    assert dial(pool) == {1.0}
    warm.prefill.place(5000, NOW)  # more than the prompt, less than three times as much
    assert choose(REQUEST, pool, now=NOW, chance=chance()).replica is idle
    pool.demand.note(1e6, NOW)
    assert dial(pool) == {3.0}
    assert choose(REQUEST, pool, now=NOW, chance=chance()).replica is warm


def test_only_replicas_that_serve_count():
    serving = pool_row(size=3)
    fleet = fleet_of(serving)
    pool = fleet.pools[serving.name]
    assert pool.demand.replicas == 3
    ends = [*serving.endpoints[:2], endpoint("p2", state="warming")]
    fleet.apply(table(pool_row(size=3, endpoints=tuple(ends)), epoch=2), now=NOW, wall=NOW)
    assert pool.demand.replicas == 2
