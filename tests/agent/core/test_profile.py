"""What a replica's cache is believed to hold: bounded, prefix by prefix, as a plain model says."""

from __future__ import annotations

from typing import Any

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
# A prompt sent; all unused since the last so many dropped; the tail of a prompt dropped by the
# engine; another capacity.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.lists(st.integers(0, 2), max_size=7)),
        st.tuples(st.just("expire"), st.integers(1, 8)),
        st.tuples(st.just("forget"), st.lists(st.integers(0, 2), min_size=1, max_size=7)),
        st.tuples(st.just("resize"), st.integers(0, 12)),
    ),
    max_size=40,
)


class PlainModel:
    """Blocks by when they were last used, moved one by one."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used: dict[int, float] = {}

    def insert(self, blocks: list[int], now: float) -> None:
        for block in reversed(blocks[: self.capacity]):
            self.used.pop(block, None)
            self.used[block] = now
        self.fit()

    def fit(self) -> None:
        while len(self.used) > self.capacity:
            del self.used[next(iter(self.used))]

    def expire(self, before: float) -> None:
        self.used = {block: at for block, at in self.used.items() if at >= before}

    def forget(self, blocks: list[int]) -> None:
        for block in blocks:
            self.used.pop(block, None)


@given(steps=STEPS, capacity=st.integers(0, 12))
def test_a_profile_forgets_block_by_block_as_a_plain_model_does(
    steps: list[tuple[str, Any]], capacity: int
) -> None:
    index, profile, model = PrefixIndex(), PrefixProfile(capacity), PlainModel(capacity)
    profile.join(index)
    seen: set[int] = set()
    for time, (what, value) in enumerate(steps):
        if what == "insert":
            seen.update(blocks := chain(value))
            profile.insert(blocks, float(time))
            model.insert(blocks, float(time))
        elif what == "expire":
            profile.expire(float(time - value))
            model.expire(float(time - value))
        elif what == "forget":
            # What goes on behind these goes too: an engine gives up tails before heads.
            tail = [block for path in steps if path[0] == "insert"
                    for block in chain(path[1])[len(value) - 1:]
                    if chain(path[1])[:len(value)] == chain(value)]  # fmt: skip
            profile.forget(tail)
            model.forget(tail)
        else:
            profile.resize(value)
            model.capacity = value
            model.fit()
        assert {block: profile.used_at(block) for block in seen if block in profile} == model.used
        assert index.masks == dict.fromkeys(model.used, profile.bit)
        assert len(profile) == len(model.used)
    profile.expire(float(len(steps)))
    assert (len(profile), index.masks) == (0, {})


@given(paths=PATHS, asked=st.lists(st.integers(0, 2), max_size=7))
def test_a_profile_is_closed_and_matches_as_block_by_block(
    paths: list[list[int]], asked: list[int]
) -> None:
    profile = PrefixProfile(9)
    for time, path in enumerate(paths):
        profile.insert(chain(path), float(time))
        for known in paths[: time + 1]:
            present = [block in profile for block in chain(known)]
            assert present == sorted(present, reverse=True)  # no block without all before it
    blocks = chain(asked)
    naive = next((n for n, block in enumerate(blocks) if block not in profile), len(blocks))
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


def test_a_prompt_that_names_one_block_twice_harms_nobody() -> None:
    profile = PrefixProfile(3)
    for blocks in ([0, 0], [0, 1], [0, 0], [0, 2], [5, 6, 7], [0, 0, 0]):
        profile.insert(blocks, 1.0)
        assert len(profile) <= 3


def test_a_gap_that_an_engine_left_in_a_head_is_closed_by_the_next_prompt() -> None:
    index, profile, blocks = PrefixIndex(), PrefixProfile(100), chain([1, 2, 3, 4])
    profile.join(index)
    profile.insert(blocks, NOW)
    profile.insert(blocks[:2], NOW + 1)
    profile.forget(blocks[1:2])
    profile.insert(blocks, NOW + 2)
    assert [profile.used_at(block) for block in blocks] == [NOW + 2] * 4
    assert index.masks == dict.fromkeys(blocks, profile.bit)
    profile.expire(NOW + 3)
    assert (len(profile), index.masks) == (0, {})
