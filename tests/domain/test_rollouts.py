"""What a rollout does next, and why: a table of cases, and what must never happen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain import rollouts
from controlplane.domain.analysis import Analysis, Verdict, without_data
from controlplane.domain.rollouts import Event, Phase, PoolFacts, Step, decide


def step(**given):
    fields = {
        "phase": Phase.PROGRESSING,
        "index": 0,
        "percents": (1.0, 5.0, 25.0, 100.0),
        "bake_s": 600.0,
        "baked_s": 595.0,
        "is_observed": True,
    }
    return Step(**(fields | given))


def seen(verdict=Verdict.SUCCESSFUL, **given):
    fields = {"reason": "figures", "has_data": True, "has_enough": True}
    return Analysis(verdict=verdict, **(fields | given))


def next_of(at, look, elapsed_s=10.0):
    return decide(at, look, elapsed_s=elapsed_s)


def test_a_step_that_baked_and_passed_is_followed_by_the_next():
    assert next_of(step(), seen()).event is Event.ADVANCE


def test_the_last_step_that_passed_finishes_the_rollout():
    assert next_of(step(index=3), seen()).event is Event.FINISH


def test_a_failed_analysis_takes_the_canary_back_whatever_else_holds():
    for at in (step(baked_s=0.0), step(phase=Phase.PAUSED), step(is_observed=False)):
        decision = next_of(at, seen(Verdict.FAILED, reason="slower"))
        assert (decision.event, decision.reason) == (Event.FAIL, "slower")


def test_the_clock_runs_only_while_there_is_data_and_every_agent_obeys():
    assert next_of(step(baked_s=100.0), seen()).baked_s == 110.0
    silent = next_of(step(baked_s=100.0), without_data("Redis does not answer"))
    assert (silent.event, silent.baked_s) == (None, 100.0)
    assert "Redis does not answer: the clock stands still" in silent.reason
    unobserved = next_of(step(baked_s=100.0, is_observed=False), seen())
    assert unobserved.baked_s == 100.0
    assert "not every agent" in unobserved.reason


def test_a_control_plane_that_slept_for_an_hour_does_not_count_it_as_baked():
    assert next_of(step(baked_s=0.0), seen(), elapsed_s=3600.0).baked_s == 60.0
    assert next_of(step(baked_s=5.0), seen(), elapsed_s=-30.0).baked_s == 5.0


def test_a_paused_rollout_stays():
    decision = next_of(step(phase=Phase.PAUSED), seen())
    assert (decision.event, decision.baked_s) == (None, 595.0)


def test_a_split_that_somebody_changed_pauses_it_with_what_differs():
    fault = rollouts.drift({"a": 99.0, "b": 1.0}, {"a": 50.0})
    decision = next_of(step(drifted=fault), seen())
    assert decision.event is Event.PAUSE
    assert "'a' has 50 instead of 99" in decision.reason
    assert "'b' has 0 instead of 1" in decision.reason
    assert rollouts.drift({"a": 99.0, "b": 0.0}, {"a": 99.0}) == ""


def test_too_few_requests_wait_for_more():
    decision = next_of(step(), seen(Verdict.INCONCLUSIVE, reason="3 of 200", has_enough=False))
    assert decision.event is None
    assert "waiting for requests: 3 of 200" in decision.reason


def test_doubt_waits_three_bake_times_and_then_asks_a_person():
    look = seen(Verdict.INCONCLUSIVE, reason="likely")
    assert next_of(step(baked_s=1700.0), look).event is None
    asked = next_of(step(baked_s=1795.0), look)
    assert asked.event is Event.PAUSE
    assert "a person must look" in asked.reason


def test_a_spent_error_budget_holds_a_step_that_passed():
    decision = next_of(step(held_by="budget spent"), seen())
    assert decision.event is None
    assert "passed, but held: budget spent" in decision.reason
    assert next_of(step(index=3, held_by="budget spent"), seen()).event is Event.FINISH


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(list(Verdict)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.floats(0, 10_000),
    st.integers(0, 3),
)
def test_no_step_is_taken_without_data_bake_time_and_requests(
    verdict, has_data, has_enough, observed, baked_s, index
):
    look = seen(verdict, has_data=has_data, has_enough=has_enough)
    decision = next_of(step(is_observed=observed, baked_s=baked_s, index=index), look)
    if decision.event in (Event.ADVANCE, Event.FINISH):
        assert verdict is Verdict.SUCCESSFUL
        assert has_data
        assert has_enough
        assert observed
        assert decision.baked_s >= 600.0


def test_a_finished_rollout_moves_no_more():
    assert all(rollouts.next_phase(Phase.HEALTHY, event) is None for event in Event)
    assert rollouts.next_phase(Phase.PAUSED, Event.ABORT) is Phase.DEGRADED
    assert rollouts.RUNNING == (Phase.PROGRESSING, Phase.PAUSED)


@pytest.mark.parametrize("share", [100.0, 1.0, 33.3])
def test_weights_add_up_and_their_ends_are_exact(share):
    assert rollouts.weights(share, 0.0) == (share, 0.0)
    assert rollouts.weights(share, 100.0) == (0.0, share)
    stable, canary = rollouts.weights(share, 5.0)
    assert stable + canary == pytest.approx(share)


def facts(slug="a", **given):
    fields = {"model": "m", "version": "v1", "weight": 100.0, "ready": 1}
    return PoolFacts(slug=slug, **(fields | given))


@pytest.mark.parametrize(
    ("stable", "canary", "said"),
    [
        (facts("a"), facts("a"), "both pool 'a'"),
        (facts("a"), facts("b", weight=0.0, model="other"), "serves 'other'"),
        (facts("a"), facts("b", weight=0.0, ready=0), "no ready replica"),
        (facts("a", weight=0.0), facts("b", weight=0.0), "no share of 'm'"),
        (facts("a"), facts("b", weight=5.0), "weight 5): set it to 0 first"),
        (
            facts("a", gpus=frozenset({("n1", 0), ("n1", 1)})),
            facts("b", weight=0.0, gpus=frozenset({("n1", 1)})),
            "share a card or MIG slice (n1 GPU 1)",
        ),
    ],
)
def test_a_start_is_refused_with_its_reason(stable, canary, said):
    assert said in rollouts.start_fault(stable, canary)


def test_a_start_is_refused_while_another_runs():
    a, b = facts("a"), facts("b", weight=0.0)
    assert rollouts.start_fault(a, b) == ""
    assert rollouts.start_fault(a, b, running="one runs") == "one runs"


@pytest.mark.parametrize(
    ("percents", "said"),
    [
        ([], "last step"),
        ([1, 50], "last step"),
        ([0, 100], "above 0"),
        ([5, 5, 100], "larger"),
        ([5, 200, 100], "at most 100"),
        ([*(float(i) for i in range(1, 21)), 100], "at most 20"),
    ],
)
def test_steps_that_make_no_sense_are_named(percents, said):
    assert said in rollouts.steps_fault(percents)


def test_the_usual_steps_are_fine():
    assert rollouts.steps_fault(rollouts.DEFAULT_STEPS) == ""
