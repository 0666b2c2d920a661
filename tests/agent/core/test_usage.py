"""How busy a replica is, and what saved work counts for there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.choose import choose
from routing_agent.core.expected_ttft import hit_dial
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefill import USAGE_LIFE_S, Prefill
from tests.agent.core.build import NOW, chance, pool_state

BLOCKS = tuple(range(40))
REQUEST = RouteRequest(2816, 1, prompt_tokens=2560, blocks=BLOCKS, block_tokens=64.0)


def dials(pool):
    choice = choose(REQUEST, pool, now=NOW, chance=chance(), explain=True)
    return [c.terms["hit_dial"] for c in choice.candidates]


def test_usage_is_a_share_of_what_the_replica_can_compute_and_fades():
    prefill, at = Prefill(), 1000.0
    assert prefill.usage(at) == 0.0
    for _ in range(1500):
        at += 0.3
        prefill.count_work(round(0.3 * 0.25 * prefill.tokens_per_s), at)
    assert prefill.usage(at) == pytest.approx(0.25, rel=0.05)
    assert prefill.usage(at + USAGE_LIFE_S) == pytest.approx(0.25 / 2.718, rel=0.05)


def test_saved_work_counts_for_itself_in_an_idle_pool_and_by_the_dial_in_a_half_busy_one():
    pool = pool_state(2, policy="expected_ttft", hit_dial=3.0)
    warm, idle = pool.replicas
    warm.fit_profile(64.0)
    warm.profile.insert(BLOCKS, NOW)
    assert dials(pool) == [1.0, 1.0]
    warm.prefill.place(5000, NOW)  # more than the prompt, less than three times as much
    assert choose(REQUEST, pool, now=NOW, chance=chance()).replica is idle
    for replica in pool.replicas:
        half = 0.5 * USAGE_LIFE_S * replica.prefill.tokens_per_s
        replica.prefill.count_work(round(half), NOW)
    assert dials(pool) == pytest.approx([3.0, 3.0], rel=0.1)
    assert choose(REQUEST, pool, now=NOW, chance=chance()).replica is warm


@given(st.floats(0, 50), st.floats(0, 9))
def test_a_token_counts_for_no_less_than_itself_unless_it_is_asked_to(usage, asked):
    found = hit_dial(usage, asked)
    assert found == asked if asked <= 1 else 1 <= found <= 1 + (asked - 1) * 3.01
    assert hit_dial(usage + 0.1, asked) >= found
