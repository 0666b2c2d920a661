"""What became of a copied request."""

from __future__ import annotations

import pytest

from controlplane.domain.shadow_pairs import Marked, copies_told, marked, outcome
from routing_agent import wire


@pytest.mark.parametrize(
    ("shadow", "is_same", "said"),
    [
        ({"status": 200}, True, "same"),
        ({"status": 200}, False, "differs"),
        ({"status": 500}, False, "failed"),
        ({"status": 200, "error": "broke off"}, False, "failed"),
    ],
)
def test_outcomes(shadow, is_same, said):
    pair = wire.ShadowPair(
        uid="u",
        request_id="r",
        at=1.0,
        primary=wire.ShadowAnswer(status=200),
        shadow=wire.ShadowAnswer(**shadow),
        is_same=is_same,
    )
    assert outcome(pair) == said


def test_a_text_is_cut_where_it_begins_to_differ():
    assert marked("abcd", 2) == Marked(same="ab", rest="cd")
    assert marked("abcd", None) == Marked(same="abcd", rest="")


def test_what_became_of_copies_is_added_up_over_agents_in_words():
    told = [{"answered": 3, "dropped_limit": 1, "newer": 2}, {"answered": 4, "failed": 0}]
    assert copies_told(told) == [
        ("answered", 7),
        ("not made: as many were under way as may be", 1),
        ("newer", 2),
    ]
    assert copies_told([]) == []
