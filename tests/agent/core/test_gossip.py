"""What agents tell one another: small, advisory, enough to find a conversation's cache."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.choose import choose
from routing_agent.core.fleet import PoolState
from routing_agent.core.gossip import MOST_HASHES, TOLD_LIFE_S, Gossip, Hearsay, Told
from routing_agent.core.policy import RouteRequest
from routing_agent.core.prefix_index import HINT_LIFE_S, PrefixIndex, told_places
from tests.agent.core.build import NOW, chance, pool_state
from tests.agent.core.test_profile import chain

BLOCKS = tuple(range(1000, 1060))


def asked(blocks: tuple[int, ...] = BLOCKS, session: int = 1) -> RouteRequest:
    tokens = 64 * len(blocks)
    return RouteRequest(tokens, session, prompt_tokens=tokens, blocks=blocks, block_tokens=64.0)


def two_agents() -> tuple[PoolState, PoolState]:
    pools = pool_state(4, policy="expected_ttft"), pool_state(4, policy="expected_ttft")
    for pool in pools:
        pool.gossip = Gossip()
    return pools


@given(st.integers(0, 3000))
def test_places_are_few_and_dense_enough(length: int) -> None:
    places = list(told_places(length))
    assert places == sorted(set(places))
    assert len(places) <= 8 + 4 * max(length, 1).bit_length()
    assert all(1 <= place <= length for place in places)
    # What is shared up to any place is known to a fifth.
    for n in range(1, length + 1, 7):
        assert max(place for place in places if place <= n) > n * 0.79


def test_a_conversation_is_found_by_the_other_agent() -> None:
    one, other = two_agents()
    home = one.replicas[2]
    one.note_placed(asked(), home, now=NOW)
    other.hear("one", one.tell(NOW), now=NOW)
    longer = (*BLOCKS, 1, 2, 3)
    choice = choose(asked(longer, session=9), other, now=NOW, chance=chance())
    assert choice.replica is other.by_id(home.id)
    assert choice.route == "prefix"
    assert one.tell(NOW)[home.id].hashes == []  # told once; what waits is told as long as it does


def test_what_waits_is_told_and_believed_for_a_while() -> None:
    one, other = two_agents()
    one.note_placed(asked(), one.replicas[0], now=NOW)
    told = one.tell(NOW)
    assert (told["p0"].waiting, told["p0"].waiting_tokens) == (1, 60 * 64)
    other.hear("one", told | {"gone": Told([])}, now=NOW)
    hearsay = other.replicas[0].hearsay
    assert hearsay.mean_waiting_tokens(NOW) == 60 * 64
    assert hearsay.mean_waiting_tokens(NOW + TOLD_LIFE_S + 1) is None
    assert pool_state(2).tell(NOW) == {}


def test_an_agent_believes_in_as_much_of_a_cache_as_is_its_own() -> None:
    hearsay = Hearsay()
    assert hearsay.share() == 1.0
    hearsay.note_inserted(30, 0, NOW)
    hearsay.hear("other", Told([], inserted_blocks=90), NOW)
    assert hearsay.share() == pytest.approx(0.25)


def test_more_than_a_report_holds_is_only_counted() -> None:
    gossip = Gossip()
    for n in range(400):
        gossip.note("r", range(n * 500, n * 500 + 500), 100, 7)
    told = gossip.take()["r"]
    assert MOST_HASHES - 40 < len(told.hashes) <= MOST_HASHES
    assert (told.inserted_blocks, told.work_tokens) == (400 * 400, 2800)


def test_hints_grow_old_and_end_with_the_process() -> None:
    index, blocks = PrefixIndex(), chain([1, 2, 3, 4, 5])
    assert index.hinted(blocks) == []
    index.hear([blocks[0], blocks[1]], 1, NOW)
    index.hear([blocks[0]], 2, NOW)
    index.hear([blocks[4]], 8, NOW)
    index.forget(8)
    assert index.hinted(blocks) == [(2, 1), (1, 2)]
    index.hear([], 1, NOW + HINT_LIFE_S + 1)
    assert index.hinted(blocks) == [(2, 1), (1, 2)]
    index.hear([chain([9])[0]], 4, NOW)
    index.forget(1)
    assert index.hinted(blocks) == [(1, 2)]
    index.hear([], 1, NOW + 2 * HINT_LIFE_S + 2)
    index.hear([], 1, NOW + 3 * HINT_LIFE_S + 3)
    assert index.hinted(blocks) == []
