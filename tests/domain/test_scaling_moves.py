"""From what is to what is wanted: what is taken back, promoted, started, drained, given up."""

from __future__ import annotations

from typing import Any

from controlplane.domain.replica_states import State
from controlplane.domain.scaling_inputs import Member
from controlplane.domain.scaling_moves import Moves, moves


def member(replica: str, state: State = State.READY, **given: Any) -> Member:
    return Member(replica=replica, state=state, **given)


def test_what_scaling_itself_drains_is_taken_back_before_anything_is_started():
    there = [
        member("a"),
        member("b", State.DRAINING, drained_by_scaling=True),
        member("c", State.DRAINING),
    ]
    assert moves(there, wanted=3, spares=0) == Moves(cancel_drains=("b",), start=1)


def test_warm_spares_are_promoted_and_replaced():
    there = [
        member("a"),
        member("s", State.WARMING, is_spare=True, is_warmed=True),
        member("t", State.WARMING, is_spare=True),
    ]
    found = moves(there, wanted=3, spares=2)
    assert found == Moves(promote=("s",), start=1, start_spares=1)
    assert found.sentence() == "promotes 1 spare, starts 1, starts 1 spare"


def test_a_spare_too_many_is_given_up():
    there = [member("a"), member("s", State.LOADING, is_spare=True)]
    assert moves(there, wanted=1, spares=0) == Moves(give_up=("s",))


def test_going_down_gives_up_what_does_not_serve_then_drains_the_least_burdened():
    there = [
        member("a", inflight_tokens=900, zone="x"),
        member("b", inflight_tokens=100, zone="x"),
        member("c", inflight_tokens=10, zone="y"),
        member("d", State.FAILED),
    ]
    found = moves(there, wanted=2, spares=0)
    assert found == Moves(give_up=("d",), drain=("b",))
    assert found.sentence() == "drains 1, gives up 1 that did not serve"


def test_the_fullest_zone_loses_first_and_one_out_of_health_before_it():
    there = [
        member("a", zone="x", inflight_tokens=5),
        member("b", zone="x", inflight_tokens=9),
        member("c", zone="y", inflight_tokens=1),
        member("e", State.EJECTED, zone="y"),
    ]
    assert moves(there, wanted=2, spares=0).drain == ("e", "a")


def test_one_that_starts_is_given_up_only_in_a_hurry():
    there = [member("a"), member("l", State.LOADING)]
    assert moves(there, wanted=1, spares=0) == Moves(drain=("a",))
    assert moves(there, wanted=1, spares=0, hurried=True) == Moves(give_up=("l",))


def test_what_somebody_else_runs_is_left_alone():
    there = [member("a", is_run=False), member("b", inflight_tokens=9)]
    assert moves(there, wanted=1, spares=0).drain == ("b",)
    assert moves(there[:1], wanted=0, spares=0).is_none


def test_nothing_to_do_says_so():
    found = moves([member("a")], wanted=1, spares=0)
    assert found.is_none
    assert found.sentence() == "nothing to do"
