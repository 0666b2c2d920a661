"""Which replicas hold which adapters: slots, eviction, pins, limits, and the switch of versions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.placement import Holding, Seat, Wish, place, take_over
from controlplane.domain.replica_states import State


def wish(name: str, used_at: float = 1.0, **given_values) -> Wish:
    defaults = {"adapter": f"acme/{name}", "model": "m", "rank": 8}
    return Wish(served_name=name, used_at=used_at, **(defaults | given_values))


def seat(replica: str = "r1", **given_values) -> Seat:
    defaults = {"pool": "chat", "model": "m", "state": State.READY}
    held = frozenset(given_values.pop("holds", ()))
    return Seat(replica=replica, holds=held, **(defaults | given_values))


def held(plan, replica: str = "r1") -> list[str]:
    return sorted(plan.held[replica])


def test_every_replica_of_the_model_gets_every_adapter_while_there_is_room():
    plan = place([wish("a"), wish("b")], [seat("r1"), seat("r2"), seat("r3", model="other")])
    assert (held(plan, "r1"), held(plan, "r2"), held(plan, "r3")) == (["a", "b"], ["a", "b"], [])
    assert plan.left_out == ()


def test_the_least_recently_used_makes_room():
    wishes = [wish("old", 1.0), wish("newer", 2.0), wish("newest", 3.0)]
    plan = place(wishes, [seat(slots=2, holds=["old", "newer"])])
    assert held(plan) == ["newer", "newest"]
    (missing,) = plan.left_out
    assert (missing.served_name, missing.replica) == ("old", "r1")
    assert "all 2 adapter slots" in missing.reason


def test_a_pinned_adapter_is_never_evicted_however_old():
    wishes = [wish("pinned", 0.0, pinned=True), *(wish(f"a{n}", 10.0 + n) for n in range(9))]
    plan = place(wishes, [seat("r1", slots=1), seat("r2", slots=2)])
    assert held(plan, "r1") == ["pinned"]
    assert held(plan, "r2") == ["a8", "pinned"]


def test_each_adapter_has_a_replica_before_any_has_two():
    wishes = [wish(f"a{n}", float(n)) for n in range(4)]
    plan = place(wishes, [seat("r1", slots=2), seat("r2", slots=2)])
    assert sorted([*plan.held["r1"], *plan.held["r2"]]) == ["a0", "a1", "a2", "a3"]


def test_what_is_loaded_stays_where_it_is():
    seats = [seat("r1", slots=1, holds=["b"]), seat("r2", slots=1, holds=["a"])]
    plan = place([wish("a", 2.0), wish("b", 1.0)], seats)
    assert (held(plan, "r1"), held(plan, "r2")) == (["b"], ["a"])


def test_a_new_version_comes_before_the_one_it_replaces():
    new = wish("new", 5.0, adapter="acme/x", active=False)
    old = wish("old", 5.0, adapter="acme/x")
    assert held(place([old, new], [seat(slots=1, holds=["old"])])) == ["new"]
    assert held(place([old, new], [seat(slots=2)])) == ["new", "old"]


@pytest.mark.parametrize(
    ("given_values", "reason"),
    [
        ({"max_rank": 4}, "rank 8 exceeds 4"),
        ({"engine": "llamacpp"}, "llamacpp engines load no adapters"),
        ({"has_agent": False}, "no agent of ours"),
        ({"has_node": False, "has_agent": False}, "registered without its node"),
        ({"slots": 0}, "is 0, or was when this engine was started"),
    ],
)
def test_a_replica_that_cannot_hold_it_says_why(given_values, reason):
    plan = place([wish("a")], [seat(**given_values)])
    assert held(plan) == []
    assert reason in plan.left_out[0].reason


@pytest.mark.parametrize("state", list(State))
def test_only_replicas_that_serve_or_start_get_adapters(state):
    plan = place([wish("a")], [seat(state=state)])
    seated = state in {State.LOADING, State.WARMING, State.READY, State.EJECTED}
    assert held(plan) == (["a"] if seated else [])
    assert plan.left_out == ()


_wishes = st.lists(
    st.builds(
        wish,
        st.sampled_from("abcdefgh"),
        st.floats(0, 9),
        pinned=st.booleans(),
        rank=st.sampled_from([8, 128]),
        model=st.sampled_from(["m", "n"]),
    ),
    max_size=8,
    unique_by=lambda w: w.served_name,
)
_seats = st.lists(
    st.builds(
        seat,
        st.sampled_from(["r1", "r2", "r3", "r4"]),
        slots=st.integers(0, 4),
        model=st.sampled_from(["m", "n"]),
        holds=st.sets(st.sampled_from("abcdefgh"), max_size=4),
    ),
    max_size=4,
    unique_by=lambda s: s.replica,
)


@settings(max_examples=50, deadline=None)
@given(_wishes, _seats)
def test_slots_models_and_ranks_hold_and_every_gap_has_a_reason(wishes, seats):
    plan = place(wishes, seats)
    by_name = {w.served_name: w for w in wishes}
    reasons = {(gap.served_name, gap.replica) for gap in plan.left_out}
    for one in seats:
        assert len(plan.held[one.replica]) <= one.slots
        for name in plan.held[one.replica]:
            assert (by_name[name].model, by_name[name].rank <= 64) == (one.model, True)
        for missing in wishes:
            if missing.model == one.model and missing.served_name not in plan.held[one.replica]:
                assert (missing.served_name, one.replica) in reasons


@settings(max_examples=50, deadline=None)
@given(_wishes, _seats)
def test_carrying_a_plan_out_changes_nothing_more(wishes, seats):
    plan = place(wishes, seats)
    after = [seat(s.replica, slots=s.slots, model=s.model, holds=plan.held[s.replica])
             for s in seats]  # fmt: skip
    assert place(wishes, after).held == plan.held


# --- when the name changes over


def stages(*names: str | None) -> list[Holding]:
    return [Holding(stage=name) for name in names]


@pytest.mark.parametrize(
    ("new", "old", "waiting_s", "now", "said"),
    [
        (("loaded", "loaded"), ("loaded",), 1, True, "2 of 2"),
        (("loaded", "loading"), ("loaded",), 1, False, "1 of 2"),
        (("loaded", "loading"), ("loaded",), 61, True, "after 61 s"),
        (("loaded", "failed"), ("loaded",), 1, True, "1 of 2"),
        (("failed", "failed"), ("loaded",), 99, False, "failed on all 2"),
        (("failed", "failed"), ("failed",), 99, False, "failed on all 2"),
        (("fetching", None), ("loaded",), 99, False, "0 of 2"),
        (("fetching",), ("failed",), 1, True, "loaded nowhere"),
        ((), (), 1, True, "loaded nowhere"),
    ],
)
def test_a_new_version_takes_the_name_once_it_is_loaded(new, old, waiting_s, now, said):
    verdict = take_over(stages(*new), stages(*old), waiting_s=waiting_s)
    assert (verdict.now, said in verdict.reason) == (now, True)
