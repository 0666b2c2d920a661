"""What is done about the process of a replica that an agent runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.domain.engine_runs import (
    RunView,
    Step,
    backoff_s,
    may_end_unknown,
    next_step,
    start_serial,
    stop_serial,
)
from controlplane.domain.replica_states import Event, State
from routing_agent.wire import EngineProcess

NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)


def run(state: State, age_s: float = 1.0, **given: Any) -> RunView:
    return RunView(state=state, state_since=NOW - timedelta(seconds=age_s), starts=1, **given)


def engine(state: str, serial: int = 2, **given: Any) -> EngineProcess:
    return EngineProcess(replica="r", state=state, serial=serial, **given)


def step(view: RunView, seen: EngineProcess | None = None) -> Step | None:
    return next_step(view, seen, now=NOW)


def test_a_new_replica_is_started_and_the_action_repeated_until_its_agent_tells_of_it():
    assert step(run(State.PENDING)) == Step(event=Event.START, reason="its engine is asked for")
    assert step(run(State.LOADING)).action == "start"
    assert step(run(State.LOADING), engine("failed", serial=1)).action == "start"
    assert step(run(State.LOADING), engine("running")) is None


@pytest.mark.parametrize("state", [State.LOADING, State.READY, State.EJECTED, State.DRAINING])
def test_a_process_that_ended_fails_its_replica_with_the_end_of_its_log(state):
    crashed = engine("failed", detail="its process ended with status 3", log_tail="a\nOOM")
    assert step(run(state), crashed) == Step(
        event=Event.GONE, reason="its process ended with status 3; its log ends: OOM"
    )
    assert step(run(state), engine("stopped")).reason == "its engine was stopped"


def test_a_ready_replica_of_which_nothing_is_told_stays():
    assert step(run(State.READY)) is None


def test_loading_has_a_limit_and_so_has_warming_but_no_spare():
    late = {"loading_since": NOW - timedelta(seconds=901)}
    assert step(run(State.LOADING, **late), engine("running")).event is Event.DEADLINE
    assert step(run(State.WARMING, **late), engine("running")).event is Event.DEADLINE
    assert step(run(State.WARMING, is_spare=True, **late), engine("running")) is None


def test_a_failed_replica_is_started_again_after_longer_and_longer_rests():
    assert [backoff_s(n) for n in (0, 1, 2, 3, 20)] == [5, 5, 10, 20, 300]
    assert step(run(State.FAILED, age_s=4, failures=1)) is None
    assert step(run(State.FAILED, age_s=6, failures=1)) == Step(
        event=Event.START, reason="restarted 5 s after failure 1 in a row"
    )


def test_what_still_runs_of_a_failed_replica_is_stopped_first():
    failed = run(State.FAILED, age_s=60, failures=1)
    assert step(failed, engine("running")).action == "stop"
    assert step(failed, engine("stopping", serial=3)) is None
    assert step(failed, engine("stopped", serial=3)).event is Event.START


def test_one_that_fails_again_and_again_is_given_up():
    found = step(run(State.FAILED, failures=6, state_reason="CUDA out of memory"))
    assert found.event is Event.GIVE_UP
    assert found.reason == "given up after 6 failures in a row; the last: CUDA out of memory"


def test_a_stopped_replicas_engine_is_stopped():
    assert step(run(State.STOPPED), engine("running")).action == "stop"
    assert step(run(State.STOPPED), engine("stopping")) is None
    assert step(run(State.STOPPED)) is None


def test_the_numbers_of_actions_grow_with_every_start():
    numbers = [f(n) for n in (1, 2, 3) for f in (start_serial, stop_serial)]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    ("starts", "obeyed", "serial"), [(2, 4, 5), (2, 0, 5), (1, 6, 7), (1, 7, 7), (3, 5, 7)]
)
def test_a_stop_is_never_older_than_what_was_obeyed(starts, obeyed, serial):
    assert stop_serial(starts, obeyed) == serial


@pytest.mark.parametrize(
    ("started_s", "passed_s", "may"),
    [(1, 0, True), (-1, 599, False), (-1, 600, True), (None, 599, False), (None, 600, True)],
)
def test_an_engine_of_before_we_were_in_charge_gets_the_time_of_a_drain(started_s, passed_s, may):
    began = None if started_s is None else NOW.timestamp() + started_s
    now = NOW + timedelta(seconds=passed_s)
    one = engine("running", started_at=began)
    assert may_end_unknown(one, in_charge_since=NOW, now=now) is may
