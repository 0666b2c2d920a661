"""What a report counted, over the time it counted: exact sums, no spike after an outage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.telemetry import packing, spreading
from controlplane.telemetry.recent import RecentStore
from controlplane.telemetry.snapshots import NoData, Window
from controlplane.telemetry.spreading import Stretch
from tests.controlplane.telemetry.conftest import T0, delta, drawn, drawn_of, replica, report

outages = st.floats(min_value=0, max_value=5000)


@given(
    counts=st.dictionaries(st.sampled_from([b"s200", b"t40", b"ot"]), st.integers(0, 10**9)),
    of_replica=st.lists(st.integers(0, 10**6), min_size=5, max_size=5),
    begin=st.integers(10**6, 10**6 + 100),
    steps=st.integers(1, 720),
    base=st.sampled_from([5, 60]),
)
@settings(deadline=None)
def test_a_stretch_adds_up_to_what_was_counted_and_each_step_has_its_share(
    counts, of_replica, begin, steps, base
):
    begin *= 5
    fields = {name: b"%d" % n for name, n in counts.items()}
    fields[b"r/rpl-1"] = b" ".join(b"%d" % n for n in of_replica)
    stretch = Stretch(begin_s=begin, end_s=begin + 5 * steps, fields=fields)
    start = begin // base * base
    slots = (stretch.end_s - start) // base + 2
    rows = spreading.fill([{} for _ in range(slots)], [stretch], start, base)
    for name, count in counts.items():
        parts = [int(row.get(name, 0)) for row in rows]
        assert sum(parts) == count
        assert all(0 <= part <= count * base / 5 / steps + 1 for part in parts)
    told = [row[b"r/rpl-1"].split(b" ") for row in rows if row]
    assert all(figures[:3] == [b"-", b"-", b"-"] for figures in told)
    assert [sum(int(f[i]) for f in told) for i in range(3, 8)] == of_replica


@given(covers=outages, ago=outages, now=st.floats(min_value=1.7e9, max_value=1.9e9))
def test_a_covered_time_is_whole_steps_around_it(covers, ago, now):
    found = spreading.covered(now=now, covers_s=covers, taken_ago_s=ago)
    if found is None:
        assert covers + ago <= 5.001
        return
    begin, end = found
    assert begin % 5 == end % 5 == 0
    assert abs(begin - (now - ago - covers)) <= 2.6
    assert abs(end - (now - ago)) <= 2.6 or end == begin + 5


def test_an_ordinary_report_belongs_to_the_step_in_which_it_came():
    booked = packing.additions(report(covers_s=2.0, pools=(delta(requests={"200": 1}),)), T0 + 1)
    kinds = ("pool:chat", "minute:chat", "minute:chat@v1")
    assert set(booked) == {f"sb:{kind}:{int(T0)}" for kind in kinds}


@pytest.mark.redis
def test_a_report_that_was_sent_again_tells_of_when_it_was_counted(store: RecentStore):
    resent = report(covers_s=9.0, taken_ago_s=61.0, pools=(delta(requests={"200": 20}),))
    store.book(resent, T0 + 100)
    steps = store.pool_steps("chat", int(T0), int(T0) + 100)
    told = {i * 5: s.requests["200"] for i, s in enumerate(steps) if s and s.requests}
    assert told == {30: 10, 35: 10}


@pytest.mark.redis
def test_after_an_outage_rates_are_the_average_and_gauges_stay_gaps(store: RecentStore):
    def told(number: int, requests: int, total: int, covers_s: float):
        return report(
            number,
            covers_s=covers_s,
            pools=(delta(requests={"200": requests}, output_tokens=10 * requests),),
            replicas=(replica(requests_total=total, engine_running=4, kv_usage=0.5),),
        )

    store.book(told(1, 20, 20, 2.0), T0 + 1)
    store.book(told(2, 800, 820, 80.0), T0 + 81)
    window = Window(end_s=int(T0) + 80, step_s=5, steps=16, span_s=5)
    steps = store.pool_steps("chat", int(T0), int(T0) + 80)
    rates = drawn("requests", steps, window).series["answered"][1:]
    assert rates == pytest.approx([10.0] * len(rates), abs=0.3)
    tokens = drawn("tokens", steps, window).series["output"][1:]
    assert tokens == pytest.approx([100.0] * len(tokens), abs=1.0)
    of_replica = drawn_of("rpl-1", "failures", steps, window).series["requests"][1:]
    assert of_replica == pytest.approx([10.0] * len(of_replica), abs=0.3)
    assert drawn("load", steps, window).series["running"][2:] == [None] * 14
    minutes = store.pool_minutes(["chat"], T0 + 81, 2)["chat"]
    assert sum(m.requests["200"] for m in minutes) == 820
    assert sum(m.replicas["rpl-1"].requests for m in minutes) == 800


@pytest.mark.redis
def test_few_requests_in_a_long_outage_are_a_low_rate_not_gaps(store: RecentStore):
    store.book(report(1, covers_s=2.0, replicas=(replica(),)), T0 + 1)
    quiet = report(
        2, covers_s=60.0, pools=(delta(requests={"200": 2}),), replicas=(replica(requests_total=2),)
    )
    store.book(quiet, T0 + 61)
    steps = store.pool_steps("chat", int(T0), int(T0) + 60)
    assert not isinstance(steps, NoData)
    assert None not in steps
    window = Window(end_s=int(T0) + 60, step_s=60, steps=1, span_s=60)
    (rate,) = drawn("requests", steps, window).series["answered"]
    assert rate == pytest.approx(2 / 60, abs=1 / 60)
