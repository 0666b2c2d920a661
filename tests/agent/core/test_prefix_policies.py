"""Cache against load: what is saved, what waits, and who gets a prefix that nobody has."""

from __future__ import annotations

from collections import Counter

import pytest

from routing_agent.core.choose import POLICIES, PREFIX_POLICIES, RouteRequest, choose
from routing_agent.core.fleet import PoolState
from routing_agent.core.replica import Replica
from tests.agent.core.build import NOW, chance, pool_state

BLOCKS = tuple(range(100, 140))


def asked(blocks: tuple[int, ...] = BLOCKS, session: int = 1) -> RouteRequest:
    tokens = 64 * len(blocks) + 10
    return RouteRequest(
        tokens + 256, session, prompt_tokens=tokens, blocks=blocks, block_tokens=64.0
    )


def chosen(pool: PoolState, request: RouteRequest) -> Replica:
    choice = choose(request, pool, now=NOW, chance=chance())
    assert choice.replica is not None
    return choice.replica


@pytest.mark.parametrize("policy", sorted(PREFIX_POLICIES))
def test_a_cached_prefix_wins_until_too_much_work_waits_there(policy: str) -> None:
    pool = pool_state(3, policy=policy)
    warm = pool.replicas[1]
    warm.fit_profile(64.0)
    warm.profile.insert(BLOCKS, NOW)
    choice = choose(asked(), pool, now=NOW, chance=chance(), explain=True)
    assert (choice.replica, choice.route) == (warm, "prefix")
    scores = {c.replica: c.score for c in choice.candidates}
    assert scores[warm.id] == min(score for score in scores.values() if score is not None)
    warm.begin(40_000, NOW)
    warm.prefill.place(40_000, NOW)
    choice = choose(asked(), pool, now=NOW, chance=chance())
    assert choice.replica is not warm
    assert choice.route in ("load", "hash")


def test_without_knowledge_of_prefixes_it_is_the_least_backlog_then_the_least_load() -> None:
    pool = pool_state(3, policy="expected_ttft")
    plain = RouteRequest(300, 1, prompt_tokens=44)
    pool.replicas[0].prefill.place(90_000, NOW)
    pool.replicas[1].begin(500, NOW)
    assert chosen(pool, plain) is pool.replicas[2]


def test_a_prefix_that_nobody_has_goes_to_the_same_replica_on_every_agent() -> None:
    homes = [
        [chosen(pool_state(4, policy="expected_ttft"), asked(session=s)).id for s in range(40)]
        for _ in range(2)
    ]
    assert homes[0] == homes[1]
    assert len(Counter(homes[0])) == 4


def test_a_slow_start_makes_a_replica_dear() -> None:
    pool = pool_state(2, policy="expected_ttft", slow_start_s=30)
    pool.replicas[0].ramp_from = NOW
    assert {chosen(pool, asked(session=s)).id for s in range(20)} == {"p1"}


def test_every_policy_explains_itself() -> None:
    for policy in POLICIES:
        pool = pool_state(2, policy=policy)
        terms = POLICIES[policy].terms(asked(), pool.replicas[0], now=NOW)
        assert all(isinstance(value, float) for value in terms.values())
