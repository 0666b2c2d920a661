"""What agents tell one another of what is under way: told once it changes, summed, forgotten."""

from __future__ import annotations

import pytest

from routing_agent.core.choose import choose
from routing_agent.core.expected_ttft import costs_of
from routing_agent.core.figures import EngineFigures
from routing_agent.core.fleet import PoolState
from routing_agent.core.gossip import LOAD_LIFE_S
from routing_agent.core.loads import (
    ENDS_TOLD,
    FOLLOWED_S,
    LEAST_PAUSE_S,
    REPEATED_S,
    LoadTeller,
    hear,
    pause_s,
)
from routing_agent.core.policy import RouteRequest
from tests.agent.core import build
from tests.agent.core.build import NOW


def scraped(pool: PoolState, now: float = NOW, *, waiting: int = 0, running: int = 0) -> None:
    for replica in pool.replicas:
        replica.note_health(True, "", now)
        replica.note_scrape(EngineFigures(running=running, waiting=waiting, kv_usage=0.0), now)


def two_agents() -> tuple[PoolState, PoolState]:
    one, other = build.pool_state(2), build.pool_state(2)
    scraped(one)
    scraped(other)
    return one, other


def test_what_one_agent_sent_another_counts_until_it_is_through() -> None:
    one, other = two_agents()
    teller = LoadTeller()
    assert teller.take(one, NOW) == {}
    first = one.replicas[0]
    first.begin(1256, NOW)
    prompt = first.prefill.place(1000, NOW)
    told = teller.take(one, NOW)
    assert told == {"p0": (1, 1000.0)}
    assert teller.take(one, NOW + LEAST_PAUSE_S) == {}, "nothing came or went"
    again = teller.take(one, NOW + FOLLOWED_S)
    assert 0 < again["p0"][1] < 1000, "what waits gets less, and is followed"
    hear(other, "agt-1", told | {"gone": (9, 9.0)}, NOW)
    assert other.replicas[0].tokens_of_others(NOW) == 1000
    assert other.replicas[1].tokens_of_others(NOW) == 0
    request = RouteRequest(1256, 7, prompt_tokens=1000)
    choice = choose(request, other, now=NOW, chance=build.chance(), explain=True)
    assert choice.replica is other.replicas[1]
    assert choice.candidates[0].terms["told_by_agents_tokens"] == 1000, "and it is explained"
    assert "told_by_agents_tokens" not in choice.candidates[1].terms

    first.prefill.note_first_token(prompt, NOW + 1)
    assert teller.take(one, NOW + 1) == {"p0": (1, 0.0)}
    assert teller.take(one, NOW + 1 + REPEATED_S / 2) == {}, "what only runs is told less often"
    first.release(1256)
    ends = [teller.take(one, NOW + 2 + n * LEAST_PAUSE_S) for n in range(ENDS_TOLD + 2)]
    assert ends == [{"p0": (0, 0.0)}] * ENDS_TOLD + [{}, {}], "an end may be lost"
    assert teller.again_at == float("inf")
    hear(other, "agt-1", ends[0], NOW + 2)
    assert other.replicas[0].hearsay.told_tokens == 0


def test_a_replica_that_is_used_again_has_not_ended() -> None:
    one, _ = two_agents()
    teller = LoadTeller()
    one.replicas[1].begin(10, NOW)
    teller.take(one, NOW)
    one.replicas[1].release(10)
    assert teller.take(one, NOW + 1) == {"p1": (0, 0.0)}
    one.replicas[1].begin(10, NOW + 2)
    assert teller.take(one, NOW + 2) == {"p1": (1, 0.0)}
    assert teller.again_at == NOW + 2 + REPEATED_S


def test_requests_that_no_agent_tells_of_are_reckoned_from_the_scrape() -> None:
    pool, _ = two_agents()
    replica = pool.replicas[0]
    replica.prefill.mean_tokens = 500.0
    hear(pool, "agt-1", {"p0": (3, 2000.0)}, NOW)
    hear(pool, "agt-2", {"p0": (1, 100.0)}, NOW)
    scraped(pool, waiting=3, running=1)
    assert replica.others_inflight == 4
    assert replica.tokens_of_others(NOW) == 2100, "all of them were told of"
    scraped(pool, waiting=5, running=1)
    assert replica.tokens_of_others(NOW) == 2100 + 2 * 500, "two more: of whom is not known"
    later = NOW + LOAD_LIFE_S + 0.1
    hear(pool, "agt-2", {"p0": (1, 100.0)}, later)
    scraped(pool, later, waiting=1, running=0)
    assert replica.hearsay.told_requests == 1, "who fell silent is forgotten at the next scrape"
    assert replica.tokens_of_others(later) == 100


def test_where_no_figures_are_known_what_agents_tell_is() -> None:
    pool = build.pool_state(2)
    hear(pool, "agt-1", {"p0": (1, 900.0)}, NOW)
    request = RouteRequest(1256, 7, prompt_tokens=1000)
    assert [cost.ahead for cost in costs_of(request, pool.replicas, pool, NOW)] == [900, 0]
    later = NOW + LOAD_LIFE_S + 0.1
    assert [cost.ahead for cost in costs_of(request, pool.replicas, pool, later)] == [0, 0]


@pytest.mark.parametrize(
    ("others", "replicas", "wanted_s"),
    [(1, 8, LEAST_PAUSE_S), (3, 8, LEAST_PAUSE_S), (99, 8, 0.2475), (3, 1000, 0.2)],
)
def test_who_has_many_to_tell_or_to_look_at_tells_less_often(
    others: int, replicas: int, wanted_s: float
) -> None:
    assert pause_s(others, replicas) == pytest.approx(wanted_s)
