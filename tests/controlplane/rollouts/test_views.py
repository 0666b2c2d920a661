"""Pages of rollouts: what they say, which buttons there are, what a click does."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from controlplane.fleet.models import TrafficSplit
from controlplane.rollouts import services, tasks
from controlplane.rollouts.models import Rollout, RolloutStep
from tests.controlplane.rollouts.conftest import obey, started, weights
from tests.controlplane.staff import poll, signed_in
from tests.factories import WHY

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair")]
FORM = {
    "stable_pool": "chat-a",
    "canary_pool": "chat-b",
    "percents": "5, 100",
    "bake_s": "60",
    "min_requests": "20",
    "regression_percent": "15",
    "reason": "v2 is out",
}


def page(client, row) -> str:
    return client.get(reverse("rollout", args=[row.pk])).content.decode()


def test_the_list_is_empty_then_shows_rollouts():
    client = signed_in("viewer")
    assert "There has been no rollout" in client.get("/rollouts/").content.decode()
    row = started()
    shown = client.get("/rollouts/").content.decode()
    assert f"rollout-{row.pk}" in shown
    assert "Start a rollout" not in shown
    assert "Progressing" in client.get("/rollouts/?csv=1").content.decode()
    assert "No rollout matches" in client.get("/rollouts/?model=other").content.decode()


def test_a_rollout_is_started_by_the_form():
    client = signed_in("operator")
    assert "Start rollout" in client.get("/rollouts/start/?canary=chat-b").content.decode()
    answer = client.post("/rollouts/start/", FORM)
    row = Rollout.objects.get()
    assert answer["Location"] == f"/rollouts/{row.pk}/"
    assert (row.percents, row.bake_s, row.regression_limit) == ([5.0, 100.0], 60.0, 0.15)
    assert weights() == {"chat-a": 95.0, "chat-b": 5.0}


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ({"percents": "5, x"}, 400, "Numbers with commas"),
        ({"percents": "5, 50"}, 400, "The last step must be 100"),
        ({"canary_pool": "chat-a"}, 409, "both pool"),
    ],
)
def test_the_form_says_why_it_cannot_start(given, status, said):
    answer = signed_in("operator").post("/rollouts/start/", FORM | given)
    assert (answer.status_code, Rollout.objects.count()) == (status, 0)
    assert said in answer.content.decode()


def test_the_page_shows_ladder_verdict_and_trail(figures, agent):
    row = started(bake_s=600.0)
    client = signed_in("operator")
    assert "has not been looked at yet" in page(client, row)
    figures.book("chat-a", 900)
    figures.book("chat-b", 60)
    obey(agent)
    RolloutStep.objects.update(observed_at=timezone.now() - timedelta(seconds=20))
    tasks.evaluate()
    shown = page(client, row)
    for words in ("1 %", "25 %", "TTFT P99", "rollout.start", "observed by 1 of 1", "Abort"):
        assert words in shown, words
    assert poll(client, f"/rollouts/{row.pk}/").status_code == 200


def test_buttons_fit_the_phase():
    client, row = signed_in("operator"), started()
    assert "Promote one step" in page(client, row)
    services.pause_rollout(number=row.pk, **WHY)
    assert "Resume" in page(client, row)
    for _ in range(3):
        services.promote_rollout(number=row.pk, **WHY)
    assert "Finish now" in page(client, row)
    services.promote_rollout(number=row.pk, **WHY)
    assert "Roll back" in page(client, row)
    assert "do-abort" not in page(client, row)
    assert "do-roll-back" not in page(signed_in("viewer"), row)


def test_an_aborted_rollout_has_no_buttons():
    client, row = signed_in("operator"), started()
    services.abort_rollout(number=row.pk, **WHY)
    shown = page(client, row)
    assert "do-" not in shown
    assert "not reached" in shown


@pytest.mark.parametrize("deed", ["pause", "promote", "abort"])
def test_an_action_is_confirmed_with_its_effect_and_a_reason(deed):
    client, row = signed_in("operator"), started()
    url = reverse("rollout-action", args=[row.pk, deed])
    asked = client.get(url).content.decode()
    assert "Reason (goes into the audit log)" in asked
    assert client.post(url, {"expected_version": row.version}).status_code == 400
    answer = client.post(url, {"reason": "why", "expected_version": row.version})
    assert answer.status_code == 302
    assert client.post(url, {"reason": "why", "expected_version": row.version}).status_code == 409


def test_an_action_that_does_not_exist_is_not_found_and_a_viewer_may_none():
    row = started()
    assert signed_in("operator").get(f"/rollouts/{row.pk}/explode/").status_code == 404
    assert signed_in("viewer").get(f"/rollouts/{row.pk}/abort/").status_code == 403
    assert signed_in("admin").get("/rollouts/999/").status_code == 404


def test_resume_and_roll_back_are_confirmed_too():
    client, row = signed_in("operator"), started(percents=[100])
    services.pause_rollout(number=row.pk, **WHY)
    client.post(reverse("rollout-action", args=[row.pk, "resume"]), {"reason": "why"})
    services.promote_rollout(number=row.pk, **WHY)
    url = reverse("rollout-action", args=[row.pk, "roll-back"])
    assert "one step" in client.get(url).content.decode()
    assert client.post(url, {"reason": "worse"})["Location"] == f"/rollouts/{row.pk + 1}/"


def test_a_split_that_was_changed_is_said_on_the_page():
    client, row = signed_in("operator"), started()
    TrafficSplit.objects.filter(pool__slug="chat-b").update(weight=70.0)
    assert "has 70 instead of 1" in page(client, row)


def test_a_spent_error_budget_is_said_and_can_be_overridden(monkeypatch):
    client, row = signed_in("operator"), started()
    monkeypatch.setattr("controlplane.rollouts.selectors.budget_freeze", lambda pool: "all spent")
    url = reverse("rollout-action", args=[row.pk, "promote"])
    assert "all spent" in client.get(url).content.decode()
    assert client.post(url, {"reason": "why"}).status_code == 409
    assert client.post(url, {"reason": "why", "override_budget": "1"}).status_code == 302
    assert weights()["chat-b"] == 5.0


def test_the_overview_names_rollouts_that_wait_for_a_person_and_search_finds_them():
    client, row = signed_in("operator"), started()
    assert f"Rollout {row.pk} of m" not in client.get("/").content.decode()
    services.pause_rollout(number=row.pk, **WHY)
    assert f"Rollout {row.pk} of m is Paused" in client.get("/").content.decode()
    services.abort_rollout(number=row.pk, **WHY)
    assert f"Rollout {row.pk} of m" not in client.get("/").content.decode()
    RolloutStep.objects.update(outcome="failed")
    assert "Stable has everything again" in client.get("/").content.decode()
    assert f"/rollouts/{row.pk}/" in client.get("/search/?q=chat").content.decode()
    assert f"/rollouts/{row.pk}/" in str(client.get(f"/search/?q={row.pk}").content)


def test_the_page_of_a_pool_says_which_rollout_moves_its_weight():
    row = started()
    assert f"Rollout {row.pk} moves this pool" in (
        signed_in("viewer").get("/pools/chat-b/").content.decode()
    )


def test_a_reason_is_told_in_full_once_and_a_pool_says_its_share_of_the_sessions():
    row = started()
    client = signed_in("operator")
    assert "Started by" in page(client, row)
    assert "99 % of m’s sessions" in client.get("/pools/chat-a/").content.decode()
    services.abort_rollout(number=row.pk, actor=WHY["actor"], reason="too slow for us")
    shown = page(client, row)
    assert "as said above" in shown
    assert "as said at its step" in shown
    assert shown.count("too slow for us") == 1
    assert "Aborted: too slow for us" in shown
