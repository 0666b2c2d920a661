"""Policies: what they prefer, what they never do."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.core.chance import EvenOdds
from routing_agent.core.choose import FULL, POLICIES, TRIED, choose, exclusion
from routing_agent.core.policy import RouteRequest
from routing_agent.core.ring import Ring, load_ceiling
from routing_agent.core.table import session_hash
from tests.agent.core.build import NOW, chance, pool_state


def request(session: int = 1, tokens: int = 10, **changes: object) -> RouteRequest:
    return RouteRequest(tokens=tokens, session=session, **changes)  # type: ignore[arg-type]


@given(
    policy=st.sampled_from(sorted(POLICIES)),
    loads=st.lists(st.integers(0, 10_000), min_size=1, max_size=12),
    blocked=st.sets(st.integers(0, 11)),
    tried=st.sets(st.integers(0, 11)),
    session=st.integers(0, 2**64 - 1),
    seed=st.integers(0, 99),
)
def test_a_choice_is_always_usable_and_there_is_one_if_any_is(
    policy: str, loads: list[int], blocked: set[int], tried: set[int], session: int, seed: int
) -> None:
    pool = pool_state(len(loads), policy=policy)
    for i, load in enumerate(loads):
        pool.replicas[i].inflight_tokens = load
        pool.replicas[i].inflight_requests = load // 100
        if i in blocked:
            pool.replicas[i].note_health(False, "off", NOW)
    asked = request(session, tried=tuple(f"p{i}" for i in tried))
    choice = choose(asked, pool, now=NOW, chance=random.Random(seed), explain=True)
    usable = {f"p{i}" for i in range(len(loads))} - {f"p{i}" for i in blocked | tried}
    assert (choice.replica is None) == (not usable)
    assert choice.reason
    if choice.replica is not None:
        assert choice.replica.id in usable
        assert choice.route == ("retry" if tried else choice.route)
    assert {c.replica for c in choice.candidates if not c.excluded} == usable


def test_round_robin_takes_turns() -> None:
    pool = pool_state(3, policy="round_robin")
    chosen = [choose(request(), pool, now=NOW, chance=chance()).replica.id for _ in range(9)]
    assert Counter(chosen) == {"p0": 3, "p1": 3, "p2": 3}


def test_random_reaches_all() -> None:
    pool, dice = pool_state(3, policy="random"), chance()
    chosen = {choose(request(), pool, now=NOW, chance=dice).replica.id for _ in range(50)}
    assert chosen == {"p0", "p1", "p2"}


@pytest.mark.parametrize("policy", ["least_requests", "least_tokens"])
def test_the_least_loaded_wins_and_ties_go_round(policy: str) -> None:
    pool = pool_state(3, policy=policy)
    pool.replicas[0].begin(1000, NOW)
    chosen = [choose(request(), pool, now=NOW, chance=chance()).replica.id for _ in range(6)]
    assert set(chosen) == {"p1", "p2"}


@pytest.mark.parametrize("policy", ["least_requests", "least_tokens"])
def test_weight_and_slow_start_scale_the_load(policy: str) -> None:
    pool = pool_state(2, policy=policy, slow_start_s=30)
    pool.replicas[0].ramp_from = NOW
    chosen: Counter[str] = Counter()
    for _ in range(110):
        replica = choose(request(), pool, now=NOW, chance=chance()).replica
        replica.begin(10, NOW)
        chosen[replica.id] += 1
    assert 5 <= chosen["p0"] <= 15


@pytest.mark.parametrize("policy", ["least_requests", "least_tokens"])
def test_large_pools_are_sampled(policy: str) -> None:
    pool = pool_state(300, policy=policy)
    for replica in pool.replicas[:150]:
        replica.inflight_tokens = replica.inflight_requests = 1000
    dice = chance()
    for _ in range(50):
        choice = choose(request(), pool, now=NOW, chance=dice)
        assert choice.replica.inflight_tokens == 0


def test_a_session_keeps_its_replica() -> None:
    pool = pool_state(5, policy="consistent_hash")
    choices = [choose(request(42), pool, now=NOW, chance=chance()) for _ in range(5)]
    assert len({c.replica.id for c in choices}) == 1
    assert {c.route for c in choices} == {"affinity"}


def test_an_unusable_home_passes_sessions_on_and_takes_them_back() -> None:
    """R31: consistently to one other replica, no ping-pong."""
    pool = pool_state(5, policy="consistent_hash")

    def home() -> object:
        return choose(request(42), pool, now=NOW, chance=chance()).replica

    first = home()
    first.note_health(False, "off", NOW)  # type: ignore[attr-defined]
    moved = {home() for _ in range(5)}
    assert len(moved) == 1
    assert moved != {first}
    first.note_health(True, "on", NOW)  # type: ignore[attr-defined]
    assert home() is first


def test_an_overloaded_home_passes_sessions_on() -> None:
    """Bounded load: 1.25 times the mean."""
    pool = pool_state(4, policy="consistent_hash")
    home = choose(request(42), pool, now=NOW, chance=chance()).replica
    home.begin(1000, NOW)
    choice = choose(request(42), pool, now=NOW, chance=chance())
    assert choice.replica is not home
    assert choice.route == "hash"


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=8), st.integers(1, 5000))
def test_hashing_never_passes_the_bound(loads: list[int], tokens: int) -> None:
    pool = pool_state(len(loads), policy="consistent_hash")
    for replica, load in zip(pool.replicas, loads, strict=True):
        replica.inflight_tokens = load
    chosen = choose(request(7, tokens), pool, now=NOW, chance=chance()).replica
    ceiling = load_ceiling(
        total_tokens=sum(loads), request_tokens=tokens, replicas=len(loads), bound=1.25
    )
    least = min(loads)
    assert chosen.inflight_tokens + tokens <= ceiling or chosen.inflight_tokens == least


def test_nobody_under_the_bound_means_the_least_loaded() -> None:
    pool = pool_state(2, policy="consistent_hash", ring_bound=1.0)
    pool.replicas[0].inflight_tokens = pool.replicas[1].inflight_tokens = 100
    choice = choose(request(7, 50), pool, now=NOW, chance=chance())
    assert choice.route == "load"


def test_full_is_told_apart_from_unusable() -> None:
    pool = pool_state(2, max_concurrency_per_replica=1)
    pool.replicas[0].begin(1, NOW)
    pool.replicas[1].note_health(False, "off", NOW)
    choice = choose(request(), pool, now=NOW, chance=chance())
    assert (choice.replica, choice.is_full, choice.reason) == (None, True, FULL)
    assert exclusion(request(tried=("p0",)), pool.replicas[0], NOW) == TRIED


def test_an_empty_pool_says_so() -> None:
    choice = choose(request(), pool_state(0), now=NOW, chance=chance())
    assert choice.reason == "the pool has no replicas"
    assert not choice.is_full


def test_even_odds_land_in_the_middle() -> None:
    assert (EvenOdds().random(), EvenOdds().randrange(10)) == (0.5, 5)


KEYS = [session_hash(0, "t", "named", f"s{i}".encode()) for i in range(1000)]


def homes(ids: list[str], nodes: int = 160) -> list[str]:
    ring = Ring(ids, virtual_nodes=nodes, seed=0)
    return [next(iter(ring.walk(key))) for key in KEYS]


@settings(max_examples=20)
@given(st.integers(2, 12), st.integers(0, 11))
def test_removing_one_moves_only_its_own_sessions(size: int, gone: int) -> None:
    """R30."""
    ids = [f"r{i}" for i in range(size)]
    left = ids[gone % size]
    before, after = homes(ids), homes([i for i in ids if i != left])
    assert all(b in (a, left) for b, a in zip(before, after, strict=True))


def test_adding_one_moves_few_and_all_to_the_new_one() -> None:
    """R30: at most 30 % for the fifth."""
    before, after = homes(["a", "b", "c", "d"]), homes(["a", "b", "c", "d", "e"])
    moved = [a for b, a in zip(before, after, strict=True) if a != b]
    assert 0 < len(moved) <= 300
    assert set(moved) == {"e"}


def test_virtual_nodes_even_the_shares() -> None:
    """R30: within 35 % of the mean with 200; another layout with 1."""
    shares = Counter(homes(["a", "b", "c", "d"], 200))
    assert all(162 <= n <= 338 for n in shares.values())
    assert homes(["a", "b", "c", "d"], 1) != homes(["a", "b", "c", "d"], 200)


@given(st.sets(st.text(min_size=1, max_size=3), max_size=6), st.integers(0, 2**64 - 1))
def test_a_walk_meets_everyone_once(ids: set[str], key: int) -> None:
    walked = list(Ring(ids, virtual_nodes=8, seed=3).walk(key))
    assert sorted(walked) == sorted(ids)


def test_the_less_loaded_of_two_wins_and_all_are_met() -> None:
    pool, dice = pool_state(4, policy="power_of_two"), chance()
    pool.replicas[0].begin(1000, NOW)
    chosen = {choose(request(), pool, now=NOW, chance=dice).replica.id for _ in range(60)}
    assert chosen == {"p1", "p2", "p3"}


def test_a_session_stays_above_the_bound_for_new_ones_and_not_far_above() -> None:
    pool = pool_state(4, policy="consistent_hash")
    home = choose(request(7), pool, now=NOW, chance=chance()).replica
    pool.note_placed(request(7), home, now=NOW)
    for replica in pool.replicas:
        replica.begin(1000, NOW)
    home.begin(800, NOW)  # 1.5 times the mean: too much for a new session
    stays = choose(request(7), pool, now=NOW, chance=chance())
    assert (stays.replica, stays.route) == (home, "affinity")
    home.begin(9000, NOW)
    assert choose(request(7), pool, now=NOW, chance=chance()).replica is not home
