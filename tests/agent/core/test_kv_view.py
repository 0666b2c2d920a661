"""What an engine's own events teach about our blocks, and what they must not."""

from __future__ import annotations

from array import array

from routing_agent.core.kv_view import LATE_S, Cleared, Ended, KvContents, KvView, Removed, Stored
from routing_agent.core.profile import PrefixProfile

NOW = 100.0
BLOCK_BYTES = 64  # ours: 16 tokens of 4 bytes
BLOCK_TOKENS = 16  # the engine's


def view(
    contents: KvContents | None = None, *, capacity: int = 1000
) -> tuple[KvView, PrefixProfile]:
    profile = PrefixProfile(capacity)
    made = KvView(profile, KvContents() if contents is None else contents, block_bytes=BLOCK_BYTES)
    return made, profile


def stored(first: int, count: int, *, parent: int | None = None, extra: bytes = b"") -> Stored:
    """Blocks `first`, `first + 1`, …; the content of a block is its hash's last digit."""
    hashes = list(range(first, first + count))
    tokens = array("I", [block % 10 for block in hashes for _ in range(BLOCK_TOKENS)])
    extras = [extra] + [b""] * (count - 1)
    return Stored(hashes, parent, tokens, BLOCK_TOKENS, extras)


def ended(blocks: list[int], *, tokens: int | None = None, sent_at: float = NOW) -> Ended:
    """A request of ours on an engine that does not tell what it had cached."""
    size = len(blocks)
    counted = size * BLOCK_TOKENS if tokens is None else tokens
    return Ended(blocks, size * BLOCK_BYTES, counted, None, sent_at, sent_at + 1)


def taught(one: KvView, first: int, ours: list[int]) -> None:
    """Let an engine compute a prompt of ours, and tell of it."""
    one.apply(stored(first, len(ours)), NOW + 0.5)
    one.note_ended(ended(ours))
    one.settle(NOW + 1 + LATE_S)


def test_what_an_engine_drops_is_forgotten_block_by_block() -> None:
    one, profile = view()
    profile.insert([901, 902, 903], NOW)
    taught(one, 10, [901, 902, 903])
    assert one.counts["found"] == 1
    one.apply(Removed([12, 77]), NOW + 5)
    assert profile.matching([901, 902, 903]) == 2
    assert one.held_tokens == 2 * BLOCK_TOKENS


def test_blocks_that_an_engine_computed_twice_are_held_until_both_copies_are_dropped() -> None:
    """As vLLM tells it: requests that begin alike at one time each store a copy of their own."""
    one, profile = view()
    profile.insert([901, 902], NOW)
    taught(one, 10, [901, 902])
    one.apply(stored(10, 2), NOW + 3)
    one.apply(Removed([11, 10]), NOW + 5)
    assert (profile.matching([901, 902]), one.held_tokens) == (2, 2 * BLOCK_TOKENS)
    one.apply(stored(12, 1, parent=11), NOW + 6)  # its beginning is still known
    assert one.counts["orphans"] == 0
    one.apply(Removed([11, 10]), NOW + 7)
    assert (profile.matching([901, 902]), one.held_tokens) == (0, BLOCK_TOKENS)


def test_what_was_dropped_before_it_was_known_is_forgotten_once_it_is(monkeypatch) -> None:
    """A cache that is short of room drops a prompt before its answer is over."""
    for most, found, left in ((9, 1, 1), (1, 0, 3)):  # so many are remembered
        monkeypatch.setattr("routing_agent.core.kv_view.MOST_GONE", most)
        one, profile = view()
        profile.insert([901, 902, 903], NOW)
        one.apply(stored(10, 3), NOW + 0.5)
        one.apply(Removed([12, 11]), NOW + 0.9)
        one.note_ended(ended([901, 902, 903]))
        one.settle(NOW + 1 + LATE_S)
        assert (one.counts["found"], profile.matching([901, 902, 903])) == (found, left)


def test_more_copies_than_the_cache_has_room_for_are_none() -> None:
    """An engine may tell of a block again that it stored once: then one removal ends it."""
    one, _ = view()
    one.most_tokens = 5 * BLOCK_TOKENS
    for _ in range(3):
        one.apply(stored(10, 2), NOW)
    one.apply(Removed([11, 10]), NOW + 1)
    assert one.held_tokens == 0


def test_a_prompt_that_others_sent_is_known_once_it_was_seen_anywhere_in_the_pool() -> None:
    """Contents are of our own making: the same on every replica, whatever its hashes are."""
    contents = KvContents()
    one, _ = view(contents)
    other, profile = view(contents)
    taught(one, 10, [901, 902])
    other.apply(stored(50, 1), NOW + 9)
    assert profile.matching([901, 902]) == 1
    other.apply(stored(51, 1, parent=50), NOW + 9)
    assert profile.matching([901, 902]) == 2
    third, late = view(contents)
    third.apply(stored(60, 2, extra=b"salt"), NOW + 9)
    assert len(late) == 0, "another salt is another content"


def test_what_replicas_hold_already_is_believed_as_soon_as_its_meaning_is_learned() -> None:
    """An agent that just started learns of all replicas by what it sends to one."""
    contents = KvContents()
    one, _ = view(contents)
    other, profile = view(contents, capacity=0)  # nothing was sent there yet
    other.apply(stored(50, 2), NOW)
    taught(one, 10, [901, 902])
    assert profile.matching([901, 902]) == 2


def test_two_prompts_of_one_length_at_a_time_teach_nothing() -> None:
    one, profile = view()
    one.apply(stored(10, 2), NOW + 0.2)
    one.apply(stored(25, 2), NOW + 0.3)
    one.note_ended(ended([901, 902]))
    one.note_ended(ended([801, 802]))
    one.settle(NOW + 9)
    assert (one.counts["unclear"], one.counts["found"]) == (2, 0)
    one.apply(Removed([10, 11, 25, 26]), NOW + 9)
    assert len(profile) == 0


def test_the_prompt_that_was_through_when_our_first_token_came_is_ours() -> None:
    """Engines tell of a prompt's last block with its first token, often a little later."""
    one, _ = view()
    firsts = [NOW + 0.1, NOW + 0.4, NOW + 0.45]
    for number, at in enumerate(firsts):
        one.apply(stored(2 * number + 100, 2), at + 0.004)
        one.note_ended(Ended([number, number + 9], 128, 32, 0, at - 0.06, at))
    one.settle(NOW + 9)
    assert one.counts["found"] == 3
    one.apply(stored(206, 2), NOW + 20.02)  # one too late to tell which of two it is
    one.apply(stored(208, 2), NOW + 20.04)
    one.note_ended(Ended([77, 78], 128, 32, 0, NOW + 19.9, NOW + 20))
    one.settle(NOW + 29)
    assert (one.counts["found"], one.counts["unclear"]) == (3, 1)


def test_what_is_known_or_cached_tells_prompts_of_one_length_apart() -> None:
    one, _ = view()
    taught(one, 10, [901, 902])
    one.apply(stored(12, 1, parent=11), NOW + 20.2)  # goes on in what is known to be ours
    one.apply(stored(25, 3), NOW + 20.3)
    one.note_ended(Ended([901, 902, 903], 192, 50, 32, NOW + 20, NOW + 21))
    one.note_ended(Ended([801, 802, 803], 192, 48, 0, NOW + 20, NOW + 21))
    one.settle(NOW + 30)
    assert one.counts["found"] == 3
    one.apply(stored(34, 2), NOW + 40.1)
    one.apply(stored(43, 1), NOW + 40.2)
    one.apply(stored(44, 1, parent=43), NOW + 41.5)  # came after our first token: another's
    one.note_ended(Ended([701, 702], 128, 32, 0, NOW + 40, NOW + 41))
    one.settle(NOW + 50)
    assert one.counts["found"] == 4


def test_lengths_tell_prompts_apart_that_are_computed_at_a_time() -> None:
    one, profile = view()
    profile.insert([901, 902], NOW)
    profile.insert([801, 802, 803], NOW)
    one.apply(stored(10, 2), NOW + 0.2)
    one.apply(stored(25, 3), NOW + 0.3)
    one.note_ended(ended([901, 902]))
    one.note_ended(ended([801, 802, 803]))
    one.settle(NOW + 9)
    assert one.counts["found"] == 2
    one.apply(Removed([27]), NOW + 9)
    assert (profile.matching([901, 902]), profile.matching([801, 802, 803])) == (2, 2)


def test_a_prompt_computed_in_pieces_or_after_a_known_beginning_is_found() -> None:
    one, profile = view()
    taught(one, 10, [901, 902])
    one.apply(stored(12, 1, parent=11), NOW + 20.2)
    one.apply(stored(13, 1, parent=12), NOW + 20.4)
    profile.insert([901, 902, 903, 904], NOW + 20)
    one.note_ended(ended([901, 902, 903, 904], sent_at=NOW + 20))
    one.settle(NOW + 30)
    assert one.counts["found"] == 2
    one.apply(Removed([13]), NOW + 31)
    assert profile.matching([901, 902, 903, 904]) == 3


def test_blocks_of_ours_that_span_several_of_the_engines_fall_with_the_last_of_them() -> None:
    one, profile = view()
    profile.insert([901], NOW)
    one.apply(stored(10, 3), NOW + 0.5)
    one.note_ended(Ended([901], BLOCK_BYTES, 3 * BLOCK_TOKENS, 0, NOW, NOW + 1))
    one.settle(NOW + 9)
    one.apply(Removed([12]), NOW + 9)
    assert len(profile) == 0


def test_clearing_forgets_all_and_a_lost_message_only_what_it_taught() -> None:
    one, profile = view()
    profile.insert([901, 902], NOW)
    taught(one, 10, [901, 902])
    one.forget()
    assert (profile.matching([901, 902]), one.held_tokens) == (2, 0)
    one.apply(Cleared(), NOW + 9)
    assert len(profile) == 0


def test_what_was_emptied_twice_is_restated() -> None:
    contents = KvContents()
    one, profile = view(contents)
    profile.insert([901, 902], NOW)
    taught(one, 10, [901, 902])
    profile.clear()
    one.restate(NOW + 9)
    assert profile.matching([901, 902]) == 2


def test_blocks_without_a_known_beginning_are_counted_and_left_alone() -> None:
    one, _ = view()
    one.apply(stored(10, 2, parent=5), NOW)
    assert (one.counts["orphans"], one.held_tokens) == (2, 0)


def test_pages_of_one_token_are_not_followed() -> None:
    one, _ = view()
    one.apply(Stored([1, 2], None, array("I", [7, 8]), 1, [b"", b""]), NOW)
    one.note_ended(ended([901]))
    one.settle(NOW + 9)
    assert not one.is_followed
    assert one.counts["unseen"] == 0
    one.leave()
    one.leave()


def test_a_request_before_any_event_or_longer_than_what_was_stored_teaches_nothing() -> None:
    one, _ = view()
    one.note_ended(ended([901]))
    one.settle(NOW + 9)
    one.apply(stored(10, 1), NOW + 20)
    one.note_ended(ended([901, 902], sent_at=NOW + 20))
    one.note_ended(ended([903], tokens=3, sent_at=NOW + 20))  # less than a block
    one.note_ended(Ended([904], 64, 32, 16, NOW + 20, NOW + 21))  # cached but for the last one
    one.settle(NOW + 30)
    assert (one.counts["found"], one.counts["unseen"]) == (0, 1)


def test_what_was_learned_and_held_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr("routing_agent.core.kv_view.MOST_CONTENTS", 2)
    contents = KvContents()
    one, _ = view(contents)
    taught(one, 10, [901, 902, 903])
    assert len(contents) == 2


def test_what_is_no_news_or_lost_its_beginning_changes_nothing(monkeypatch) -> None:
    monkeypatch.setattr("routing_agent.core.kv_view.MOST_GONE", 0)
    one, profile = view()
    profile.insert([901, 902], NOW)
    taught(one, 10, [901, 902])
    taught(one, 10, [901, 902])
    assert (one.counts["found"], profile.matching([901, 902])) == (2, 2)
    one.apply(Removed([10, 10]), NOW + 5)
    one.apply(Stored([], None, array("I"), BLOCK_TOKENS, []), NOW + 6)
    one.apply(stored(12, 1, parent=11), NOW + 6.5)
    one.note_ended(ended([901, 902, 903], sent_at=NOW + 6))
    one.settle(NOW + 20)
    assert one.counts["unseen"] == 1
