"""From where on two texts differ."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.core.comparison import first_difference


def test_the_same_text_differs_nowhere() -> None:
    assert first_difference("abc", "abc") is None
    assert first_difference("", "") is None


def test_a_longer_text_differs_where_the_shorter_ends() -> None:
    assert first_difference("ab", "abc") == 2
    assert first_difference("", "x") == 0


@settings(max_examples=50, deadline=None)
@given(st.text("ab", max_size=20), st.text("ab", max_size=20))
def test_it_is_the_length_of_what_both_begin_with(a: str, b: str) -> None:
    found = first_difference(a, b)
    if found is None:
        assert a == b
    else:
        assert a[:found] == b[:found]
        assert a[found : found + 1] != b[found : found + 1]
