"""Cache against load: what is saved, what waits, and who gets a prefix that nobody has."""

from __future__ import annotations

from collections import Counter

import pytest

from routing_agent.core.choose import POLICIES, choose
from routing_agent.core.expected_ttft import costs_of, shortlist
from routing_agent.core.figures import EngineFigures
from routing_agent.core.fleet import PoolState
from routing_agent.core.gossip import Told
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefix import chain, chain_root
from routing_agent.core.profile import MOST_BLOCKS
from routing_agent.core.replica import Replica
from routing_agent.wire import PREFIX_POLICIES
from tests.agent.core.build import NOW, chance, pool_state, table
from tests.agent.core.build import fleet as fleet_of
from tests.agent.core.build import pool as pool_row
from tests.agent.core.build import settings as build_settings

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


def settle(pool: PoolState, request: RouteRequest, replica: Replica, times: int = 1) -> None:
    """Let a replica answer requests, prompts computed, so that its cache holds them."""
    for _ in range(times):
        placement = pool.note_placed(request, replica, now=NOW)
        replica.prefill.give_up(placement, NOW)


@pytest.mark.parametrize("policy", sorted(PREFIX_POLICIES))
def test_a_hot_prefix_does_not_bury_one_replica(policy: str) -> None:
    pool = pool_state(2, policy=policy)
    warm, other = pool.replicas
    hot = asked(BLOCKS[:8])
    settle(pool, hot, warm)
    for session in range(10):  # one after the other: all where it is warm
        assert chosen(pool, asked(BLOCKS[:8], session=99 + session)) is warm
    taken: Counter[str] = Counter()
    for session in range(40):  # at once, each long under way
        request = asked(BLOCKS[:8], session=session)
        replica = chosen(pool, request)
        replica.begin(request.tokens, NOW)
        settle(pool, request, replica)
        taken[replica.id] += 1
    assert taken[other.id] >= 10
    pool = pool_state(2, policy=policy)
    for n in range(20):  # a never seen prompt goes where nothing is under way
        pool.replicas[0].begin(2000, NOW)
        cold = tuple(range(10_000 + n * 50, 10_030 + n * 50))
        settle(pool, asked(cold, session=n), pool.replicas[0])
    assert {chosen(pool, asked(session=s)).id for s in range(200, 220)} == {"p1"}


@pytest.mark.parametrize("policy", sorted(PREFIX_POLICIES))
def test_equal_prompts_of_other_adapters_are_other_prefixes(policy: str) -> None:
    pool = pool_state(2, policy=policy)
    text = b"the same long prompt" * 200
    chains = {name: tuple(chain(text, chain_root(0, "1", name), 256)) for name in ("", "l1", "l2")}
    warm, other = pool.replicas
    settle(pool, asked(chains["l1"]), warm)
    warm.begin(500, NOW)
    assert chosen(pool, asked(chains["l1"], session=5)) is warm
    for name in ("", "l2"):
        assert {chosen(pool, asked(chains[name], session=s)) for s in range(50, 70)} == {other}


def test_the_profile_has_a_hard_limit_and_ends_with_its_replica() -> None:
    fleet = fleet_of(pool_row(size=2, settings=build_settings(profile_blocks=64)))
    pool = fleet.pools["p"]
    one = pool.replicas[0]
    for n in range(2000):
        settle(pool, asked(tuple(range(n * 40, n * 40 + 40)), session=n), one)
        assert len(one.profile) <= 64
        assert len(pool.index.masks) <= 64
    last = tuple(range(1999 * 40, 1999 * 40 + 40))
    assert one.profile.matching(last) == 40
    fleet.apply(table(pool_row(size=1), epoch=2), now=NOW, wall=NOW)
    assert len(pool.index.masks) == 64  # p0 stays
    fleet.apply(table(pool_row("other", size=1), epoch=3), now=NOW, wall=NOW)
    assert not pool.index.masks


def test_a_session_moves_only_for_a_margin_and_moves_are_counted() -> None:
    pool = pool_state(2, policy="expected_ttft", session_margin_s=0.5)
    home = chosen(pool, asked())
    settle(pool, asked(), home)
    other = next(r for r in pool.replicas if r is not home)
    longer = asked((*BLOCKS, *range(900, 905)))
    for replica in pool.replicas:  # half busy: saved work counts in full
        replica.prefill.count_work(200_000, NOW)
    home.prefill.place(9000, NOW)  # some two seconds; elsewhere all would be computed anew
    choice = choose(longer, pool, now=NOW, chance=chance())
    assert (choice.replica, choice.route) == (home, "affinity")
    home.prefill.place(9000, NOW)
    choice = choose(longer, pool, now=NOW, chance=chance())
    assert choice.replica is other
    assert "the session moves" in choice.reason
    settle(pool, longer, other)
    assert pool.sessions.moved_total == 1


def test_kv_space_and_adapters_cost_time() -> None:
    pool = pool_state(2, policy="expected_ttft")
    full, free = pool.replicas
    policy = POLICIES["expected_ttft"]
    costs = []
    for usage in (0.5, 0.9, 0.99):
        figures = EngineFigures(running=1, waiting=0, kv_usage=usage, kv_capacity_tokens=100_000)
        full.note_scrape(figures, NOW)
        costs.append(policy.terms(asked(), full, now=NOW)["wait_s"])
    assert costs == [0.0, pytest.approx(0.5), 60.0]
    assert chosen(pool, asked()) is free
    stale = NOW + 6
    assert policy.terms(asked(), full, now=stale)["wait_s"] == 0.0
    adapted = asked()
    adapted.adapter = "l1"
    assert policy.terms(adapted, free, now=NOW)["wait_s"] == pytest.approx(0.05)
    free.adapters.begin("l1")
    assert policy.terms(adapted, free, now=NOW)["wait_s"] == 0.0
    figures = EngineFigures(kv_usage=0.1, running_adapters=("l1",))
    full.note_scrape(figures, NOW)
    assert policy.terms(adapted, full, now=NOW)["wait_s"] == 0.0


def test_what_others_have_waiting_counts_and_stale_figures_are_neutral() -> None:
    pool = pool_state(3, policy="expected_ttft")
    for replica, waiting in zip(pool.replicas, (6, 0, 2), strict=True):
        settle(pool, asked(session=replica.profile.number), replica)
        replica.note_scrape(EngineFigures(running=waiting, waiting=waiting), NOW)
    fresh = [cost.ahead for cost in costs_of(asked(), pool.replicas, pool, NOW)]
    assert fresh[0] > fresh[2] > fresh[1] == 0.0
    pool.replicas[0].scraped_at = NOW - 100
    costs = {c.replica.id: c.ahead for c in costs_of(asked(), pool.replicas, pool, NOW)}
    assert costs["p0"] == pytest.approx((fresh[1] + fresh[2]) / 2)


@pytest.mark.parametrize("policy", sorted(PREFIX_POLICIES))
def test_a_large_pool_is_not_looked_at_whole_and_holders_are_found(policy: str) -> None:
    pool = pool_state(200, policy=policy)
    holder = pool.replicas[137]
    settle(pool, asked(session=7), holder)
    for n in range(100):
        settle(pool, asked(BLOCKS[:4], session=100 + n), pool.replicas[n])
    dice = chance()
    for session in range(30):
        found = shortlist(asked(session=session), pool, now=NOW, chance=dice)
        assert holder in found
        assert len(found) < 30
        assert choose(asked(session=session), pool, now=NOW, chance=dice).replica is holder
    had = shortlist(asked((5, 6), session=103), pool, now=NOW, chance=dice)
    assert pool.replicas[3] in had
    for replica in pool.replicas[:-1]:
        replica.note_health(False, "off", NOW)
    choice = choose(asked(session=1), pool, now=NOW, chance=dice)
    assert choice.replica is pool.replicas[-1]


def test_a_prefix_known_by_ourselves_outweighs_what_others_told() -> None:
    pool = pool_state(3, policy="expected_ttft")
    settle(pool, asked(BLOCKS[:30], session=5), pool.replicas[0])
    told = {"p0": Told(list(BLOCKS[:8])), "p1": Told(list(BLOCKS[:4])), "p2": Told([])}
    pool.hear("other", told, now=NOW)
    matching = {c.replica.id: c.matching for c in costs_of(asked(), pool.replicas, pool, NOW)}
    assert matching == {"p0": 30, "p1": 4, "p2": 0}


def test_of_many_holders_some_are_looked_at_and_not_always_the_same() -> None:
    pool = pool_state(60, policy="expected_ttft")
    for number, replica in enumerate(pool.replicas):
        settle(pool, asked(BLOCKS[:20], session=1000 + number), replica)
    pool.hear("other", {"p3": Told(list(BLOCKS[:20]))}, now=NOW)
    dice = chance()
    seen: set[str] = set()
    for session in range(40):
        found = shortlist(asked(session=session), pool, now=NOW, chance=dice)
        assert len(found) <= 20
        seen |= {r.id for r in found}
    assert len(seen) > 40


def test_idle_replicas_share_short_prompts_of_which_nothing_can_be_known() -> None:
    pool = pool_state(2, policy="expected_ttft")
    taken: Counter[str] = Counter()
    for session in range(40):
        request = RouteRequest(20, session, prompt_tokens=20)
        replica = chosen(pool, request)
        settle(pool, request, replica)
        taken[replica.id] += 1
    assert min(taken.values()) >= 12


def test_an_agent_bounds_what_it_remembers_of_all_replicas_together() -> None:
    fleet = fleet_of(pool_row(size=4, settings=build_settings(profile_blocks=64)))
    assert {r.most_blocks for r in fleet.replicas.values()} == {MOST_BLOCKS // 4}
    pool = fleet.pools["p"]
    for replica in pool.replicas:
        replica.most_blocks = 50
    settle(pool, asked(tuple(range(40))), pool.replicas[0])
    settle(pool, asked(tuple(range(100, 140)), session=2), pool.replicas[0])
    assert len(pool.replicas[0].profile) <= 50
