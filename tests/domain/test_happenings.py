"""Notices of one outage become one line that says who did what meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain import happenings
from controlplane.domain.happenings import Notice, told

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def resumed(name="routing.sweep", since=0.0, until=95.0):
    return Notice(verb=happenings.LOOP_RESUMED, subject=name, since=at(since), at=at(until))


def heard(node="node-1", since=0.0, until=95.0, **given):
    defaults = {"epoch": 3, "table_source": "push"}
    return Notice(
        verb=happenings.HEARD_AGAIN,
        subject=node,
        since=at(since),
        at=at(until),
        **(defaults | given),
    )


def lines(*notices):
    return [f"{h.what}: {h.why}" for h in told(notices)]


def test_loops_and_agents_back_from_one_outage_are_one_line():
    (line,) = told(
        [
            resumed(since=2, until=93),
            resumed("routing.reconcile", since=3, until=94),
            heard("node-1", since=0, until=90),
            heard("node-2", since=1, until=95, restarted=True, table_source="disk"),
        ]
    )
    assert line.what == "Control plane away"
    assert line.why == "node-1 went on with epoch 3; node-2 restarted from its disk table"
    assert (line.since, line.until, line.duration_s) == (at(0), at(95), 95.0)


def test_agents_that_all_went_on_are_called_agents():
    assert lines(resumed(), heard(), heard("node-2")) == [
        "Control plane away: agents went on with epoch 3"
    ]


def test_two_outages_are_two_lines_and_the_newer_comes_first():
    first, second = told([heard(until=20), heard(since=100, until=130)])
    assert (first.since, second.since) == (at(100), at(0))


def test_a_silent_agent_alone_is_no_outage_of_the_control_plane():
    assert lines(heard()) == ["Agent on node-1 not heard: node-1 went on with epoch 3"]


def test_loops_alone_stood_still_while_agents_were_heard():
    (line,) = lines(resumed(), resumed("routing.reconcile"))
    assert line.startswith("routing.sweep and routing.reconcile stood still")


def test_an_ejection_ends_with_the_recovery_and_else_goes_on():
    out = Notice(
        verb=happenings.EJECT, subject="rpl-1", since=at(0), at=at(0), reason="probes fail"
    )
    back = Notice(verb=happenings.RESTORE, subject="rpl-1", since=at(30), at=at(30))
    (over,) = told([out, back])
    assert (over.duration_s, over.why) == (30.0, "probes fail")
    (open_still,) = told([out])
    assert open_still.until is None


def test_a_halt_and_its_adoption_are_one_line():
    halt = Notice(verb=happenings.HALT, subject="publication", since=at(0), at=at(0), reason="why")
    adopt = Notice(verb=happenings.ADOPT, subject="publication", since=at(60), at=at(60))
    assert lines(halt, adopt) == ["Publishing halted, then adopted: why"]


def notice(verb, subject, **given):
    return Notice(verb=verb, subject=subject, since=at(5), at=at(5), **given)


def test_an_end_whose_beginning_is_older_than_the_window_stands_alone():
    assert lines(notice(happenings.ADOPT, "publication", reason="a backup")) == [
        "Publishing went on: a backup"
    ]
    assert lines(notice(happenings.RESTORE, "rpl-1", reason="answers")) == [
        "Replica rpl-1 back: answers"
    ]


@pytest.mark.parametrize(
    ("source", "told_as"),
    [
        ("push", "and got epoch 4 by push"),
        ("disk", "from its disk table"),
        ("none", "without a table"),
    ],
)
def test_a_restart_says_where_the_agent_has_its_table_from(source, told_as):
    restart = notice(happenings.RESTARTED, "node-1", epoch=4, table_source=source)
    assert lines(restart) == [f"Agent on node-1 restarted: {told_as}"]


def test_an_outage_in_which_every_agent_was_restarted_says_so():
    both = [heard(n, restarted=True, table_source="disk") for n in ("node-1", "node-2")]
    assert lines(resumed(), *both) == [
        "Control plane away: node-1 restarted from its disk table;"
        " node-2 restarted from its disk table"
    ]


moments = st.integers(0, 1000)


@given(st.lists(st.tuples(moments, st.integers(1, 300), st.booleans()), max_size=20))
def test_outages_never_overlap_and_cover_each_notice(found):
    notices = [
        (resumed if is_loop else heard)(since=begin, until=begin + length)
        for begin, length, is_loop in found
    ]
    spans = sorted((h.since, h.until) for h in told(notices))
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert all(any(s <= n.since and n.at <= u for s, u in spans) for n in notices)
