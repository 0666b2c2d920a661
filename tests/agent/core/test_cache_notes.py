"""What an engine tells of its cache, held against what was believed and shown to operators."""

from __future__ import annotations

from routing_agent import wire
from routing_agent.core.explain import candidates_of
from routing_agent.core.fleet import PoolState
from routing_agent.core.policy import RouteRequest
from routing_agent.core.replica_report import report_of
from tests.agent.core.build import NOW, pool_state, replica

BLOCKS = list(range(1, 21))


def asked() -> RouteRequest:
    return RouteRequest(1300, 5, prompt_tokens=1280, blocks=BLOCKS, block_tokens=64.0)


def counted(pool: PoolState, cached: int | None) -> int:
    """Send the prompt once more, let the engine count; give how many blocks are known then."""
    one = pool.replicas[0]
    placement = pool.note_placed(asked(), one, now=NOW)
    pool.note_counted(asked(), one, placement, prompt_tokens=1280, cached_tokens=cached)
    return len(one.profile)


def prepared() -> PoolState:
    pool = pool_state(2, policy="expected_ttft")
    one = pool.replicas[0]
    one.fit_profile(64.0)
    one.profile.insert(range(100, 110), NOW - 20)
    one.profile.insert(BLOCKS, NOW - 10)
    return pool


def test_a_block_that_is_missing_says_what_else_is() -> None:
    pool = prepared()
    assert counted(pool, 1100) == 30, "a few less is how blocks are cut, not a loss"
    assert counted(pool, None) == 20, "no word is a zero from an engine that has told before"
    assert pool.replicas[0].cache.expected_tokens_total == 2 * 1280


def test_engines_that_never_tell_are_believed_to_have_what_we_think() -> None:
    pool = prepared()
    assert counted(pool, None) == 30
    assert pool.replicas[0].cache.expected_tokens_total == 0


def test_reports_tell_it_where_prefixes_count() -> None:
    told = report_of(prepared().replicas[0], NOW).prefix
    assert isinstance(told, wire.PrefixReport)
    assert (told.blocks, told.kv_events) == (30, "")
    assert report_of(replica(policy="least_tokens"), NOW).prefix is None


def test_pools_know_whether_there_is_a_choice() -> None:
    pool = pool_state(2, policy="expected_ttft")
    assert pool.has_choice(NOW)
    assert (pool.uses_prefixes, pool.notes_placements) == (True, True)
    pool.replicas[0].note_doubt("answers", "away")
    assert not pool.has_choice(NOW)
    hashed = pool_state(2, policy="consistent_hash")
    assert (hashed.uses_prefixes, hashed.notes_placements) == (False, True)
    alone = pool_state(1, policy="expected_ttft")
    assert (alone.uses_prefixes, alone.notes_placements) == (False, False)
    assert len(candidates_of(asked(), pool, None, now=NOW)) == 2
