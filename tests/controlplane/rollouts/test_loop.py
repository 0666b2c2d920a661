"""The loop over rollouts: it goes on, holds, and takes back, by figures in a real Redis."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.fleet.models import TrafficSplit
from controlplane.rollouts import selectors, services, tasks
from controlplane.rollouts.models import AnalysisRun, Rollout, RolloutStep
from controlplane.rollouts.services import evaluation
from tests.controlplane.rollouts.conftest import obey, started, weights
from tests.factories import WHY

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair")]


def look(row: Rollout) -> Rollout:
    """Let the loop look once."""
    tasks.evaluate()
    row.refresh_from_db()
    return row


def observed(agent) -> None:
    """Let the agent obey, and the loop notice; figures count from the step of 5 s after that."""
    obey(agent)
    tasks.evaluate()
    RolloutStep.objects.filter(ended_at=None).update(
        observed_at=timezone.now() - timedelta(seconds=20)
    )


def test_a_good_version_reaches_everything_and_the_old_pool_stays(figures, agent):
    row = started()
    Rollout.objects.update(started_at=timezone.now() - timedelta(hours=2))
    for percent in (1.0, 5.0, 25.0):
        assert weights()["chat-b"] == percent
        observed(agent)
        figures.book("chat-a", 900)
        figures.book("chat-b", 60)
        row = look(row)
    assert weights() == {"chat-a": 0.0, "chat-b": 100.0}
    assert row.phase == "Progressing"
    observed(agent)
    figures.book("chat-b", 60)
    row = look(row)
    assert row.phase == "Healthy", row.reason
    newest = AnalysisRun.objects.first()
    assert "in the step before" in newest.source
    outcomes = list(RolloutStep.objects.values_list("outcome", flat=True))
    assert outcomes == ["passed"] * 4
    events = AuditEvent.objects.filter(target_kind="rollout", actor="rollouts")
    assert events.filter(verb="rollout.finish").count() == 1


def test_a_slower_version_is_taken_back_at_once(figures, agent):
    row = started(bake_s=600.0, min_requests=200)
    observed(agent)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60, latency_s=0.6)
    row = look(row)
    assert (row.phase, weights()) == ("Degraded", {"chat-a": 100.0, "chat-b": 0.0})
    assert "TTFT P99" in row.reason
    assert RolloutStep.objects.get().outcome == "failed"
    assert AuditEvent.objects.get(verb="rollout.fail").actor_kind == "loop"


def test_a_version_that_fails_requests_is_taken_back_even_while_paused(figures, agent):
    row = started(bake_s=600.0)
    services.pause_rollout(number=row.pk, **WHY)
    observed(agent)
    figures.book("chat-a", 900)
    figures.book("chat-b", 30, failed=12)
    row = look(row)
    assert row.phase == "Degraded"
    assert "12 of 30 failed" in row.reason


def test_no_figures_hold_and_say_so(figures, agent):
    row = started()
    observed(agent)
    row = look(row)
    assert (row.phase, row.baked_s) == ("Progressing", 0.0)
    assert "nothing was reported of pool 'chat-b'" in row.reason
    assert "the clock stands still" in row.reason
    figures.book("chat-b", 60)
    assert "nothing was reported of pool 'chat-a'" in look(row).reason


def test_a_dead_redis_holds_and_says_so(agent, settings):
    settings.ROLLOUT_INTERVAL_S = 0.0
    row = started()
    observed(agent)
    row = look(row)
    assert row.phase == "Progressing"
    assert "Redis does not answer" in row.reason


def test_figures_that_are_old_are_no_data(figures, agent, monkeypatch):
    row = started()
    observed(agent)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60)
    RolloutStep.objects.update(observed_at=timezone.now() - timedelta(seconds=60))
    later = timezone.now() + timedelta(seconds=40)
    judged = selectors.judge(row, RolloutStep.objects.get(), later)
    assert not judged.analysis.has_data
    assert "nothing was reported of pool 'chat-b' for 30 s" in judged.analysis.reason


def test_the_clock_begins_when_every_agent_we_hear_obeys(figures, agent):
    row = started(bake_s=600.0)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60)
    row = look(row)
    assert "not every agent obeys" in row.reason
    assert RolloutStep.objects.get().observed_at is None
    obey(agent)
    row = look(row)
    assert RolloutStep.objects.get().observed_at is not None


def test_two_schedulers_take_one_step(figures, agent, settings):
    row = started()
    observed(agent)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60)
    settings.ROLLOUT_INTERVAL_S = 10.0
    Rollout.objects.update(evaluated_at=timezone.now() - timedelta(seconds=10))
    tasks.evaluate()
    assert "looked at just now" in tasks.evaluate()
    assert RolloutStep.objects.count() == 2
    row.refresh_from_db()
    assert row.current == 1


def test_of_two_workers_at_once_one_looks(figures, agent):
    row = started()
    same = Rollout.objects.get(pk=row.pk)
    now = timezone.now() + timedelta(seconds=1)
    evaluation.evaluate(row, now)
    assert evaluation.evaluate(same, now) == "another worker looks at it"


def test_a_worker_killed_between_look_and_move_costs_one_look(figures, agent, monkeypatch):
    row = started()
    observed(agent)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60)

    def killed(*_):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "move", killed)
        with pytest.raises(SystemExit):
            tasks.evaluate()
    assert weights()["chat-b"] == 1.0
    assert look(row).current == 1
    assert weights()["chat-b"] == 5.0


def test_a_split_that_was_changed_past_the_hold_pauses(figures, agent):
    row = started()
    observed(agent)
    TrafficSplit.objects.filter(pool__slug="chat-b").update(weight=70.0)
    row = look(row)
    assert row.phase == "Paused"
    assert "'chat-b' has 70 instead of 1" in row.reason


def test_looks_of_the_same_verdict_are_one_row(figures, agent):
    row = started(bake_s=600.0)
    observed(agent)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60)
    for _ in range(3):
        row = look(row)
    newest = AnalysisRun.objects.first()
    assert (newest.verdict, newest.looks, newest.canary_requests) == ("Successful", 3, 60)
    assert [m["name"] for m in newest.metrics] == ["ttft_p99", "tpot_p99", "error_rate"]


def test_one_that_cannot_be_looked_at_holds_up_no_other(figures, agent, monkeypatch):
    from controlplane.domain.errors import Conflict

    row = started()

    def lost(*_):
        raise Conflict("moved meanwhile")

    monkeypatch.setattr(evaluation, "evaluate", lost)
    assert tasks.evaluate() == f"rollout {row.pk}: moved meanwhile"


def test_nothing_to_do_is_said():
    assert tasks.evaluate() == "no rollout runs"


def test_a_spent_error_budget_holds_a_step_that_passed(figures, agent, monkeypatch):
    row = started()
    observed(agent)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60)
    monkeypatch.setattr("controlplane.rollouts.selectors.budget_freeze", lambda pool: "spent")
    row = look(row)
    assert (row.phase, row.current) == ("Progressing", 0)
    assert row.reason == "passed, but held: spent"
    monkeypatch.setattr("controlplane.rollouts.selectors.budget_freeze", lambda pool: None)
    assert look(row).current == 1


def test_the_last_step_is_compared_with_stable_under_the_same_load(figures, agent):
    """Slower than in the step before, when it carried a part; not than when it carried all."""
    row = started(percents=[50, 100])
    Rollout.objects.update(started_at=timezone.now() + timedelta(seconds=10))
    figures.book("chat-a", 900, latency_s=0.4)  # before the rollout
    observed(agent)
    figures.book("chat-b", 60, latency_s=0.4)
    assert look(row).percent == 100.0
    observed(agent)
    figures.book("chat-b", 60, latency_s=0.4)
    row = look(row)
    assert row.phase == "Healthy", row.reason
    assert "before the rollout" in AnalysisRun.objects.first().source


def test_a_rollout_of_one_step_needs_to_know_stable_before_it(figures, agent):
    row = started(percents=[100])
    observed(agent)
    figures.book("chat-b", 60)
    row = look(row)
    assert row.phase == "Progressing"
    assert "stable before the rollout" in row.reason
    assert "the clock stands still" in row.reason


def test_a_step_that_has_just_begun_says_so_instead_of_missing_figures(figures, agent):
    row = started()
    obey(agent)
    row = look(row)
    assert "only begin to come: the clock stands still" in row.reason
