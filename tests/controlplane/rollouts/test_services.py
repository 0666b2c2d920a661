"""Starting a rollout and what people do with it: weights, trail, refusals."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.domain.replica_states import State
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Replica, TrafficSplit
from controlplane.rollouts import services
from controlplane.rollouts.models import Rollout, RolloutStep
from tests.controlplane.rollouts.conftest import started, weights
from tests.factories import WHY, make_node, make_pool, make_replica

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair")]


def test_a_rollout_starts_with_its_first_step_and_leaves_a_trail():
    row = started()
    assert weights() == {"chat-a": 99.0, "chat-b": 1.0}
    assert (row.phase, row.percent) == ("Progressing", 1.0)
    assert (row.stable_version, row.canary_version) == ("v1", "v2")
    step = RolloutStep.objects.get()
    assert (step.index, step.percent, step.observed_at) == (0, 1.0, None)
    verbs = list(AuditEvent.objects.order_by("id").values_list("verb", flat=True))
    assert verbs == ["model.shift_weights", "rollout.start"]
    assert AuditEvent.objects.get(verb="rollout.start").reason == "a test"


def test_promoting_goes_through_all_steps_and_finishes():
    row = started()
    for percent in (5.0, 25.0, 100.0):
        row = services.promote_rollout(number=row.pk, **WHY)
        assert weights()["chat-b"] == percent
    assert weights()["chat-a"] == 0.0
    row = services.promote_rollout(number=row.pk, **WHY)
    assert row.phase == "Healthy"
    assert row.finished_at is not None
    assert weights() == {"chat-a": 0.0, "chat-b": 100.0}
    outcomes = list(RolloutStep.objects.values_list("outcome", flat=True))
    assert outcomes == ["promoted"] * 4
    assert not TrafficSplit.objects.exclude(held_by="").exists()


def test_aborting_gives_stable_everything_back_at_once_from_any_step():
    row = started()
    for _ in range(3):
        services.promote_rollout(number=row.pk, **WHY)
    row = services.abort_rollout(number=row.pk, **WHY)
    assert row.phase == "Degraded"
    assert weights() == {"chat-a": 100.0, "chat-b": 0.0}
    assert RolloutStep.objects.last().outcome == "aborted"
    with pytest.raises(Conflict, match="is Degraded"):
        services.promote_rollout(number=row.pk, **WHY)


def test_pausing_and_resuming_keep_the_weights():
    row = started()
    assert services.pause_rollout(number=row.pk, **WHY).phase == "Paused"
    assert weights()["chat-b"] == 1.0
    with pytest.raises(Conflict):
        services.pause_rollout(number=row.pk, **WHY)
    assert services.resume_rollout(number=row.pk, **WHY).phase == "Progressing"


def test_a_person_must_say_why():
    row = started()
    with pytest.raises(Invalid, match="Say why"):
        services.abort_rollout(number=row.pk, actor=WHY["actor"], reason=" ")


def test_an_action_on_what_moved_meanwhile_is_a_conflict():
    row = started()
    services.pause_rollout(number=row.pk, **WHY)
    with pytest.raises(Conflict, match="moved meanwhile"):
        services.abort_rollout(number=row.pk, expected_version=row.version, **WHY)
    with pytest.raises(NotFound):
        services.abort_rollout(number=999, **WHY)


def test_of_two_moves_from_the_same_state_one_wins():
    from controlplane.domain.rollouts import Event
    from controlplane.rollouts.services.moves import Move, move

    row = started()
    same = Rollout.objects.get(pk=row.pk)
    move(row, Move(event=Event.ADVANCE, **WHY))
    with pytest.raises(Conflict, match="moved meanwhile"):
        move(same, Move(event=Event.ADVANCE, **WHY))
    assert weights()["chat-b"] == 5.0
    assert RolloutStep.objects.count() == 2


def test_a_finished_rollout_is_rolled_back_by_another_one():
    row = started(percents=[100])
    with pytest.raises(Conflict, match="only a finished one"):
        services.roll_back(number=row.pk, **WHY)
    services.promote_rollout(number=row.pk, **WHY)
    back = services.roll_back(number=row.pk, **WHY)
    assert (back.stable_pool, back.canary_pool) == ("chat-b", "chat-a")
    assert weights() == {"chat-a": 100.0, "chat-b": 0.0}
    with pytest.raises(Conflict, match="moved meanwhile"):
        services.roll_back(number=row.pk, expected_version=1, **WHY)


def test_one_rollout_a_model():
    started()
    with pytest.raises(Conflict, match="runs for 'm' already") as caught:
        started()
    assert caught.value.code == "not_startable"


def test_a_start_that_lost_the_race_says_so(monkeypatch):
    started()
    monkeypatch.setattr("controlplane.rollouts.selectors.running_words", lambda model: "")
    TrafficSplit.objects.filter(pool__slug="chat-b").update(weight=0.0)
    with pytest.raises(Conflict, match="just started"):
        started()


def test_pools_on_one_card_are_refused():
    node = make_node("n1")
    Replica.objects.update(node=node, gpu_indices=[0])
    with pytest.raises(Conflict, match="share a card or MIG slice"):
        started()


def test_a_canary_without_a_ready_replica_is_refused():
    Replica.objects.filter(pool__slug="chat-b").update(state=State.LOADING)
    with pytest.raises(Conflict, match="no ready replica"):
        started()


def test_a_canary_of_another_model_is_refused():
    make_replica(make_pool("other", model="n"))
    with pytest.raises(Conflict, match="one model"):
        started(canary_pool="other")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"percents": [5, 50]}, "percents"),
        ({"bake_s": -1.0}, "bake_s"),
        ({"min_requests": 0}, "min_requests"),
        ({"regression_limit": -0.1}, "regression_limit"),
        ({"canary_pool": "nowhere"}, "canary_pool"),
    ],
)
def test_rules_that_make_no_sense_are_named(given, field):
    with pytest.raises(Invalid) as caught:
        started(**given)
    assert caught.value.field == field


def test_nobody_else_moves_weights_that_a_rollout_holds():
    make_replica(make_pool("chat-c", weight=50.0))
    row = started()
    with pytest.raises(Conflict, match=f"moved by rollout {row.pk}") as caught:
        fleet.set_splits(model="m", weights={"chat-a": 50.0, "chat-b": 1.0}, **WHY)
    assert caught.value.code == "held"
    with pytest.raises(Conflict, match="moved by"):
        fleet.set_splits(model="m", weights={"chat-a": 99.0}, **WHY)
    kept = {"chat-a": 99.0, "chat-b": 1.0, "chat-c": 10.0}
    fleet.set_splits(model="m", weights=kept, **WHY)
    assert weights() == kept
    services.abort_rollout(number=row.pk, **WHY)
    fleet.set_splits(model="m", weights={"chat-a": 10.0}, **WHY)


def test_only_stables_share_is_moved_where_others_have_some_too():
    make_replica(make_pool("chat-c", weight=300.0))
    started(percents=[50, 100])
    assert weights() == {"chat-a": 50.0, "chat-b": 50.0, "chat-c": 300.0}


def test_a_pool_that_a_rollout_holds_stays():
    Replica.objects.update(state=State.STOPPED)
    make_replica(make_pool("spare", weight=0.0))
    Replica.objects.filter(pool__slug="chat-b").update(state=State.READY)
    row = started()
    Replica.objects.update(state=State.STOPPED)
    with pytest.raises(Conflict, match=f"part of rollout {row.pk}"):
        fleet.delete_pool(slug="chat-a", **WHY)


def test_a_resumed_rollout_sets_its_weights_again_where_somebody_changed_them():
    row = started()
    services.pause_rollout(number=row.pk, **WHY)
    TrafficSplit.objects.filter(pool__slug="chat-b").update(weight=70.0)
    services.resume_rollout(number=row.pk, **WHY)
    assert weights() == {"chat-a": 99.0, "chat-b": 1.0}


SPENT = "pool 'chat-a' has no error budget left this month"


@pytest.fixture
def spent(monkeypatch):
    """An error budget that is spent, as `reliability` says it."""
    monkeypatch.setattr("controlplane.rollouts.selectors.budget_freeze", lambda pool: SPENT)


@pytest.mark.usefixtures("spent")
def test_a_spent_error_budget_refuses_a_start_unless_overridden_with_a_reason():
    with pytest.raises(Conflict, match="no error budget left") as caught:
        started()
    assert caught.value.code == "budget_spent"
    assert not Rollout.objects.exists()
    started(override_budget=True)
    event = AuditEvent.objects.get(verb="rollout.override_budget")
    assert (event.reason, event.after) == ("a test", {"overridden": SPENT})


def test_a_spent_error_budget_refuses_a_further_step_but_no_end(monkeypatch):
    row = started(percents=[5, 100])
    monkeypatch.setattr("controlplane.rollouts.selectors.budget_freeze", lambda pool: SPENT)
    with pytest.raises(Conflict, match="override it"):
        services.promote_rollout(number=row.pk, **WHY)
    assert weights()["chat-b"] == 5.0
    services.promote_rollout(number=row.pk, override_budget=True, **WHY)
    assert services.promote_rollout(number=row.pk, **WHY).phase == "Healthy"
    assert services.roll_back(number=row.pk, **WHY).phase == "Progressing"
    assert AuditEvent.objects.filter(verb="rollout.override_budget").count() == 2
