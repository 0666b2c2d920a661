"""By what a list is sorted: names are read strictly, and nothing without a value comes first."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.errors import Invalid
from controlplane.domain.ordering import Order, in_order, read


def test_names_are_read_with_their_direction():
    assert read("-at, name,", {"at", "name"}) == [Order("at", True), Order("name")]
    assert read("", {"at"}) == []
    assert [str(o) for o in read("-at,name", {"at", "name"})] == ["-at", "name"]


@pytest.mark.parametrize(
    ("text", "known", "said"),
    [
        ("x", {"b", "a"}, "cannot be sorted by 'x'. It has: a, b."),
        ("--a", {"a"}, "'-a'"),
        ("x", set(), "Its order is fixed."),
        ("a,a,a,a,a,a", {"a"}, "5 columns at most"),
    ],
)
def test_what_a_list_cannot_do_is_refused_with_what_it_can(text, known, said):
    with pytest.raises(Invalid, match=said) as refused:
        read(text, known)
    assert refused.value.field == "ordering"


VALUES = st.none() | st.floats(allow_infinity=True) | st.integers()


@given(st.lists(VALUES), st.booleans())
def test_rows_without_a_value_are_last_in_both_directions(values, descending):
    found = in_order(values, lambda v: v, descending=descending)
    has = [v is not None and not math.isnan(v) for v in found]
    assert has == sorted(has, reverse=True)
    known = [v for v, yes in zip(found, has, strict=True) if yes]
    assert known == sorted(known, reverse=descending)
    assert len(found) == len(values)


def test_text_is_compared_without_its_case_and_equals_stay_as_they_were():
    rows = [("b", 1), ("A", 2), ("a", 3), ("B", 4)]
    assert in_order(rows, lambda r: r[0], descending=False) == [rows[1], rows[2], rows[0], rows[3]]
    assert in_order(rows, lambda r: r[0], descending=True) == [rows[0], rows[3], rows[1], rows[2]]
