"""How many replicas a pool wants: bounds, signals, calm, gaps, people."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.replica_states import State
from controlplane.domain.scaling import Verdict, count, decide, utilisation
from controlplane.domain.scaling_inputs import (
    Demand,
    Figures,
    Member,
    Override,
    Past,
    Policy,
    batch_usage,
    queue_wait_s,
)

NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)
FIVE_MINUTES_AGO = NOW - timedelta(minutes=5)


def member(n: int = 1, state: State = State.READY, kv: float | None = 0.5, **given: Any) -> Member:
    figures = None if kv is None or state is not State.READY else Figures(kv_usage=kv, waiting=0)
    fields: dict[str, Any] = {"figures": figures, "missing": "" if figures else "it timed out"}
    return Member(replica=f"rpl-{n}", state=state, **(fields | given))


def pool(ready: int = 2, *, kv: float = 0.5, **others: int) -> list[Member]:
    made = [member(n, kv=kv) for n in range(ready)]
    for name, n in others.items():
        made += [member(100 + len(made) + i, State(name)) for i in range(n)]
    return made


def demand(wait_s: float | None = 0.01, **given: Any) -> Demand:
    fields = {"agent_wait_p95_s": wait_s, "requests": 100, "waiting": 0}
    return Demand(**(fields | given))


def verdict(
    members: list[Member] | None = None,
    asked: Demand | None = None,
    *,
    past: Past | None = None,
    override: Override | None = None,
    now: datetime = NOW,
    **policy: Any,
) -> Verdict:
    return decide(
        Policy(**({"max_replicas": 8} | policy)),
        pool() if members is None else members,
        asked or demand(),
        past or Past(),
        override=override,
        now=now,
    )


# -- up ----------------------------------------------------------------------------------------


def test_a_pool_whose_requests_wait_too_long_doubles_at_once_and_says_why():
    found = verdict(asked=demand(3.0))
    assert (found.wanted, found.code) == (4, "up")
    assert found.reason == "queue wait P95 3.00 s over 0.50 s"


def test_full_kv_caches_ask_for_what_brings_them_to_the_limit():
    found = verdict(pool(4, kv=0.95))
    assert (found.wanted, found.code) == (5, "up")
    assert found.reason == "KV usage 95 % over 85 %"


def test_many_who_wait_are_a_signal_of_their_own():
    queued = [member(n, figures=Figures(kv_usage=0.2, waiting=7)) for n in range(2)]
    found = verdict(queued, demand(None, waiting=2))
    assert (found.wanted, found.reason) == (4, "queue length 8 over 5")
    few = [member(n, figures=Figures(kv_usage=0.1, waiting=1)) for n in range(2)]
    assert verdict(few).reason == "2 requests wait in the engines' queues"


def test_within_the_tolerance_nothing_happens():
    assert verdict(pool(2, kv=0.93), demand(0.54)).code == "keep"


def test_who_waits_now_counts_before_any_histogram_knows():
    found = verdict(asked=demand(None, waiting=5, oldest_wait_s=2.0))
    assert (found.wanted, found.code) == (4, "up")


def test_waits_in_agents_and_engines_are_one_wait():
    assert queue_wait_s(demand(0.3, engine_wait_p95_s=0.4)) == pytest.approx(0.7)
    assert verdict(asked=demand(0.3, engine_wait_p95_s=0.4)).code == "up"
    assert queue_wait_s(demand(None)) is None


def test_engines_without_a_gauge_of_their_cache_go_by_waits_and_batches():
    quiet = [member(n, figures=Figures(kv_usage=None, waiting=0, max_running=4)) for n in range(2)]
    found = verdict(quiet, demand(9.0))
    assert (found.wanted, found.code) == (4, "up")
    kv = next(s for s in found.signals if s.name == "KV usage")
    assert (kv.value, kv.pressure) == (None, 0.0)
    assert "do not tell it" in kv.note
    since = NOW - timedelta(seconds=301)
    assert verdict(quiet, past=Past(below_since=since)).code == "down"
    full = [replace(m, figures=replace(m.figures, running=4)) for m in quiet]
    assert "utilisation 100 %" in verdict(full).reason


def test_replicas_on_their_way_count_as_capacity():
    found = verdict(pool(1, loading=1), demand(9.0))
    assert (found.wanted, found.raw, found.limit) == (2, 2, "pending")
    assert found.reason.endswith("1 on their way will cover it")


def test_a_step_may_be_limited():
    assert verdict(pool(4), demand(9.0), max_step=1).wanted == 5


def test_a_breach_of_three_minutes_with_slow_starts_adds_two_replicas():
    """R52: tick 10 s, start-up 120 s, step 1."""
    members, past, ready_at = [member(0)], Past(), {}
    added = 0
    for tick in range(19):
        now = NOW + timedelta(seconds=10 * tick)
        members = [
            replace(member(n), ready_at=at) if n in ready_at and (at := ready_at[n]) <= now else m
            for n, m in enumerate(members)
        ]
        found = verdict(members, demand(5.0), past=past, now=now, max_step=1, cooldown_s=15.0)
        for _ in range(found.wanted - count(members).current):
            added += 1
            ready_at[len(members)] = now + timedelta(seconds=120)
            members.append(member(len(members), State.LOADING))
            past = Past(scaled_at=now)
    assert added == 2


def test_a_draining_replica_causes_no_replacement_while_load_is_normal():
    found = verdict(pool(2, draining=1))
    assert (found.wanted, found.code) == (2, "keep")


def test_the_last_change_is_given_time_to_show():
    recent = Past(scaled_at=NOW - timedelta(seconds=5))
    found = verdict(asked=demand(9.0), past=recent)
    assert (found.wanted, found.limit) == (2, "cool-down")
    assert found.reason.endswith("cooling down until 12:00:10")
    arrived = [replace(m, ready_at=NOW - timedelta(seconds=5)) for m in pool(2)]
    assert verdict(arrived, demand(9.0)).limit == "cool-down"


def test_at_the_most_a_breach_is_an_alarm():
    found = verdict(pool(8), demand(9.0))
    assert (found.wanted, found.is_alarm) == (8, True)
    assert found.reason.endswith("but 8 replicas are the most")


# -- gaps --------------------------------------------------------------------------------------


def test_without_any_figures_the_count_is_held_and_somebody_told():
    """R48 (a), (c), (d): 3 busy replicas, nothing known of any."""
    found = verdict([member(n, kv=None) for n in range(3)], demand(9.0))
    assert (found.wanted, found.code, found.is_alarm) == (3, "hold", True)
    assert found.reason == "held at 3: no figures of any of 3 replicas: it timed out"


def test_with_figures_of_two_of_three_those_two_decide():
    """R48 (b): up by the others; never down by the gap."""
    busy = [member(0, kv=0.99), member(1, kv=0.99), member(2, kv=None)]
    assert verdict(busy).code == "up"
    idle = [member(0, kv=0.01), member(1, kv=0.01), member(2, kv=None)]
    found = verdict(idle, past=Past(below_since=NOW - timedelta(hours=1)))
    assert (found.wanted, found.below_since) == (3, None)
    assert found.reason == "no figures of rpl-2 (it timed out): never down on a gap"


def test_a_store_that_does_not_answer_holds_the_count():
    found = verdict(asked=Demand(missing="Redis does not answer"))
    assert (found.code, found.reason) == ("hold", "held at 2: Redis does not answer")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (demand(waiting=None), "agents do not tell how many wait"),
        (demand(waiting=3), "3 requests wait"),
        (demand(0.4), "P95 queue wait is 400 ms"),
    ],
)
def test_nothing_is_taken_away_without_calm(asked, said):
    found = verdict(pool(4, kv=0.01), asked, past=Past(below_since=FIVE_MINUTES_AGO))
    assert found.wanted == 4
    assert said in found.reason


# -- down --------------------------------------------------------------------------------------


def test_a_calm_pool_waits_its_time_then_goes_down_within_the_band():
    first = verdict(pool(4, kv=0.4))
    assert (first.wanted, first.below_since, first.limit) == (4, NOW, "scale-down delay")
    later = verdict(pool(4, kv=0.4), past=Past(below_since=FIVE_MINUTES_AGO))
    assert (later.wanted, later.code) == (2, "down")
    assert later.reason == "utilisation 40 %, below 70 % since 11:55:00: 2 are enough"


def test_a_pool_within_its_band_stays():
    assert verdict(pool(4, kv=0.75)).reason == "within targets: utilisation 75 %"
    assert verdict(pool(4, kv=0.69)).reason == "within targets: utilisation 69 %"


def test_full_batches_count_as_used_where_an_engine_tells_them():
    busy = Figures(kv_usage=0.1, waiting=0, running=8, max_running=10)
    members = [member(n, figures=busy) for n in range(4)]
    assert batch_usage(members) == pytest.approx(0.8)
    assert utilisation(members) == pytest.approx(0.8)
    assert verdict(members).wanted == 4


def test_nothing_is_taken_away_while_one_starts():
    found = verdict(pool(3, kv=0.0, warming=1), past=Past(below_since=FIVE_MINUTES_AGO))
    assert (found.wanted, found.below_since) == (4, None)


def test_at_most_half_is_taken_away_at_once():
    found = verdict(pool(8, kv=0.01), past=Past(below_since=FIVE_MINUTES_AGO))
    assert found.wanted == 4


# -- bounds and nothing ------------------------------------------------------------------------


def test_below_the_least_and_above_the_most():
    assert verdict(pool(1), min_replicas=3).wanted == 3
    assert verdict(pool(4), max_replicas=3).wanted == 3


def test_what_a_silent_node_held_is_replaced():
    lost = [member(0), member(1, State.EJECTED, is_lost=True)]
    found = verdict(lost, min_replicas=2)
    assert (found.wanted, found.code) == (2, "bounds")
    assert "1 lost with their nodes" in found.reason


def test_from_zero_and_back():
    """R51: once up for those who wait, nothing while it starts, down only when nobody asks."""
    nobody = demand(None, requests=0)
    assert verdict([], nobody, min_replicas=0).wanted == 0
    up = verdict([], demand(None, waiting=20, requests=0), min_replicas=0)
    assert (up.wanted, up.reason) == (1, "20 requests wait and there is no replica")
    starting = verdict(pool(0, loading=1), demand(None, waiting=20), min_replicas=0)
    assert (starting.wanted, starting.reason) == (1, "no replica is ready yet: 1 on their way")
    calm = Past(below_since=FIVE_MINUTES_AGO)
    idle = verdict(pool(1, kv=0.0), nobody, past=calm, min_replicas=0)
    assert (idle.wanted, idle.code) == (0, "down")
    used = verdict(pool(1, kv=0.0), demand(0.0, requests=1), past=calm, min_replicas=0)
    assert used.wanted == 1


def test_without_a_replica_and_without_knowledge_nothing_is_started():
    found = verdict([], Demand(missing="Redis does not answer"), min_replicas=0)
    assert found.reason == "no replica, and not known: Redis does not answer"


# -- people ------------------------------------------------------------------------------------


def test_an_override_holds_until_its_time():
    wanted = Override(count=6, by="ann", reason="launch", expires_at=NOW + timedelta(hours=1))
    found = verdict(override=wanted)
    assert (found.wanted, found.code) == (6, "override")
    assert found.reason == "ann wants 6 until 13:00:00 UTC: launch"


def test_scaling_that_is_off_holds_what_people_want_within_the_bounds():
    found = verdict(enabled=False, wanted_by_people=20)
    assert (found.wanted, found.raw, found.limit) == (8, 20, "bounds 1 to 8")


# -- properties --------------------------------------------------------------------------------

usages = st.one_of(st.none(), st.floats(0, 1))
members_ = st.lists(
    st.builds(
        lambda n, state, kv, spare, lost: member(n, state, kv, is_spare=spare, is_lost=lost),
        st.integers(0, 99),
        st.sampled_from([s for s in State if s is not State.STOPPED]),
        usages,
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
)
demands = st.builds(
    Demand,
    agent_wait_p95_s=st.one_of(st.none(), st.floats(0, 600)),
    engine_wait_p95_s=st.one_of(st.none(), st.floats(0, 600)),
    requests=st.one_of(st.none(), st.integers(0, 1000)),
    waiting=st.one_of(st.none(), st.integers(0, 100)),
    oldest_wait_s=st.floats(0, 600),
    missing=st.sampled_from(["", "", "gone"]),
)
policies = st.builds(
    lambda low, more, **rest: Policy(min_replicas=low, max_replicas=max(low + more, 1), **rest),
    st.integers(0, 4),
    st.integers(0, 6),
    enabled=st.booleans(),
    wanted_by_people=st.integers(0, 20),
    max_step=st.one_of(st.none(), st.integers(1, 3)),
    scale_down_after_s=st.floats(0, 600),
)
pasts = st.builds(
    Past,
    scaled_at=st.sampled_from([None, NOW, FIVE_MINUTES_AGO]),
    below_since=st.sampled_from([None, NOW, FIVE_MINUTES_AGO]),
)


@settings(max_examples=50, deadline=None)
@given(policies, members_, demands, pasts)
def test_never_outside_the_bounds(policy, members, asked, past):
    found = decide(policy, members, asked, past, now=NOW)
    assert policy.min_replicas <= found.wanted <= policy.max_replicas
    assert found.reason


@settings(max_examples=50, deadline=None)
@given(members_, demands, pasts)
def test_never_down_on_what_is_not_known(members, asked, past):
    policy = Policy(min_replicas=0, max_replicas=100)
    gap = any(m.figures is None and m.state is State.READY and not m.is_spare for m in members)
    if gap or asked.missing or asked.waiting is None:
        found = decide(policy, members, asked, past, now=NOW)
        assert found.wanted >= count(members).current


@settings(max_examples=50, deadline=None)
@given(st.floats(0.05, 6.0), st.integers(1, 8))
def test_a_constant_load_comes_to_rest(load, ready):
    """`load` replicas' worth of KV cache, spread evenly; what is over makes requests wait."""
    policy = Policy(min_replicas=1, max_replicas=12, scale_down_after_s=30.0, cooldown_s=10.0)
    past, changes, now = Past(), [], NOW
    for _ in range(60):
        kv = min(load / ready, 1.0)
        asked = demand(0.0 if load <= ready else 5.0)
        found = decide(policy, pool(ready, kv=kv), asked, past, now=now)
        if found.wanted != ready:
            changes.append(found.wanted - ready)
            ready, past = found.wanted, Past(scaled_at=now)
        else:
            past = Past(scaled_at=past.scaled_at, below_since=found.below_since)
        now += timedelta(seconds=10)
    signs = [change > 0 for change in changes]
    assert sum(a != b for a, b in pairwise(signs)) <= 1
    assert len(changes) <= 6
