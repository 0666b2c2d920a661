"""What a replica's cache is believed to hold: bounded, prefix by prefix, as a plain model says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.prefix_index import PrefixIndex
from routing_agent.core.profile import PrefixProfile
from tests.agent.core.build import NOW, pool_state, replica


def chain(path: list[int], seed: int = 0) -> list[int]:
    """Hash the prefixes of a prompt: equal only if all before is equal, and the seed."""
    made, above = [], seed
    for one in path:
        above = hash((above, one))
        made.append(above)
    return made


PATHS = st.lists(st.lists(st.integers(0, 2), max_size=7), max_size=25)


@given(paths=PATHS, capacity=st.integers(0, 12), asked=st.lists(st.integers(0, 2), max_size=7))
def test_a_profile_is_bounded_closed_and_matches_as_a_plain_model(
    paths: list[list[int]], capacity: int, asked: list[int]
) -> None:
    profile, model = PrefixProfile(capacity), dict[int, int]()
    for time, path in enumerate(paths):
        blocks = chain(path)
        profile.insert(blocks, float(time))
        for block in reversed(blocks[:capacity]):
            model.pop(block, None)
            model[block] = time
        while len(model) > capacity:
            del model[next(iter(model))]
        assert len(profile) == len(model) <= capacity
        for known in paths[: time + 1]:
            present = [block in profile for block in chain(known)]
            assert present == sorted(present, reverse=True)  # no block without all before it
    blocks = chain(asked)
    naive = next((n for n, block in enumerate(blocks) if block not in model), len(blocks))
    assert profile.matching(blocks) == naive


@given(
    placed=st.lists(
        st.tuples(st.integers(0, 4), st.lists(st.integers(0, 2), max_size=7)), max_size=40
    ),
    asked=st.lists(st.integers(0, 2), max_size=7),
    most=st.integers(1, 6),
)
def test_an_index_tells_who_holds_how_much_as_each_profile_would(
    placed: list[tuple[int, list[int]]], asked: list[int], most: int
) -> None:
    index, profiles = PrefixIndex(), [PrefixProfile(6) for _ in range(5)]
    for profile in profiles[:4]:
        profile.join(index)
        profile.join(index)
    for time, (one, path) in enumerate(placed):
        profiles[one].insert(chain(path), float(time))
    profiles[4].join(index)
    profiles[0].clear()
    profiles[1].join(None)
    blocks = chain(asked)
    told = dict.fromkeys(range(5), 0)
    levels = index.levels(blocks, most)
    for count, mask in reversed(levels):
        for number, profile in enumerate(profiles):
            if mask & profile.bit:
                told[number] = count
    right = {n: p.matching(blocks) for n, p in enumerate(profiles) if n != 1}
    lengths = sorted({count for count in right.values() if count}, reverse=True)[:most]
    assert [count for count, _ in levels] == lengths
    assert all(told[n] == (count if count in lengths else 0) for n, count in right.items())
    assert told[1] == 0
    for profile in profiles:
        profile.join(None)
    assert not index.masks


def test_numbers_of_those_that_left_are_used_again() -> None:
    index, profiles = PrefixIndex(), [PrefixProfile(6) for _ in range(3)]
    for profile in profiles:
        profile.join(index)
    profiles[1].join(None)
    late = PrefixProfile(6)
    late.join(index)
    assert [p.number for p in (*profiles, late)] == [0, -1, 2, 1]


def test_another_seed_is_another_prompt() -> None:
    profile = PrefixProfile(100)
    profile.insert(chain([1, 2, 3], seed=1), NOW)
    assert profile.matching(chain([1, 2, 3, 4], seed=1)) == 3
    assert profile.matching(chain([1, 2, 3, 4], seed=2)) == 0


def test_what_an_engine_gave_up_ends_the_match_there() -> None:
    profile, blocks = PrefixProfile(100), chain([1, 2, 3, 4])
    profile.insert(blocks, NOW)
    profile.forget([*blocks[:0:-1], 12345])
    assert profile.matching(blocks) == 1
    profile.insert(blocks, NOW)
    assert profile.matching(blocks) == 4
    profile.clear()
    assert (profile.matching(blocks), len(profile)) == (0, 0)


def test_what_is_idle_for_long_is_dropped_and_what_is_used_stays() -> None:
    profile, old, new = PrefixProfile(100), chain([1, 2]), chain([3, 4])
    profile.insert(old, NOW)
    profile.insert(new, NOW + 10)
    profile.expire(NOW)
    assert profile.matching(old) == 2
    profile.expire(NOW + 5)
    assert (profile.matching(old), profile.matching(new)) == (0, 2)


def test_it_holds_what_the_kv_cache_does_unless_the_pool_says_otherwise() -> None:
    one = replica()
    one.fit_profile(64.0)
    assert one.profile.capacity_blocks == 15_250
    one.note_facts(kv_capacity_tokens=6400, max_running=None)
    one.fit_profile(64.0)
    assert one.profile.capacity_blocks == 100
    one.profile.insert(chain(list(range(100))), NOW)
    other = replica(profile_blocks=7)
    other.fit_profile(64.0)
    assert other.profile.capacity_blocks == 7
    one.note_facts(kv_capacity_tokens=640, max_running=None)
    one.fit_profile(64.0)
    assert len(one.profile) == 10


def test_another_process_has_an_empty_cache_and_nothing_to_compute() -> None:
    pool = pool_state(2)
    one = pool.replicas[0]
    one.fit_profile(64.0)
    one.profile.insert(chain([1, 2]), NOW)
    placement = one.prefill.place(1000, NOW)
    one.note_restart(NOW)
    assert (len(one.profile), one.prefill.queued_tokens) == (0, 0)
    one.prefill.give_up(placement, NOW)
    one.prefill.note_first_token(placement, NOW)
    assert one.prefill.queued_tokens == 0


def test_an_index_says_nothing_of_a_head_that_an_engine_dropped() -> None:
    index, profile, blocks = PrefixIndex(), PrefixProfile(9), chain([1, 2, 3])
    profile.join(index)
    profile.insert(blocks, NOW)
    profile.forget(blocks[:1])
    assert index.levels(blocks, 6) in ([], [(3, 1)])
    profile.expire(NOW + 1)
    assert (len(profile), index.masks) == (0, {})
