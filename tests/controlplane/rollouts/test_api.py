"""REST of rollouts: start, look, act; dry runs, repeats, roles."""

from __future__ import annotations

import pytest

from controlplane.rollouts.models import Rollout
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.rollouts.conftest import obey, started, weights

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("pair")]
URL = "/api/v1/rollouts/"
BODY = {"stable_pool": "chat-a", "canary_pool": "chat-b", "reason": "v2 is out"}


def test_a_rollout_is_started_shown_and_stopped():
    client = caller("operator")
    made = ok(client.post(URL, BODY, format="json"), 201)
    assert (made["phase"], made["percent"], made["percents"]) == (
        "Progressing",
        1.0,
        [1, 5, 25, 100],
    )
    assert made["change"]["fleet_revision"] > 0
    assert made["analysis"] is None
    one = f"{URL}{made['id']}/"
    shown = ok(client.get(one))
    assert [s["percent"] for s in shown["steps"]] == [1.0]
    for deed, phase in (("pause", "Paused"), ("resume", "Progressing"), ("promote", "Progressing")):
        shown = ok(client.post(f"{one}{deed}/", {"reason": "why"}, format="json"))
        assert shown["phase"] == phase
    assert shown["percent"] == 5.0
    shown = ok(client.post(f"{one}abort/", {"reason": "why"}, format="json"))
    assert (shown["phase"], weights()["chat-b"]) == ("Degraded", 0.0)
    assert [r["id"] for r in ok(client.get(URL, {"running": "true"}))["results"]] == []
    assert len(ok(client.get(URL, {"running": "false"}))["results"]) == 1


def test_a_dry_run_starts_nothing_and_says_what_would_be():
    shown = ok(caller().post(f"{URL}?dry_run=true", BODY, format="json"))
    assert shown["percent"] == 1.0
    assert not Rollout.objects.exists()
    assert weights() == {"chat-a": 100.0}


def test_a_repeated_start_under_one_key_starts_once():
    client = caller()
    first, second = (
        ok(client.post(URL, BODY, format="json", headers={"Idempotency-Key": "k1"}), 201)
        for _ in range(2)
    )
    assert first["id"] == second["id"]
    problem(client.post(URL, BODY, format="json"), 409, "not_startable")


def test_a_stale_action_is_refused_and_one_without_a_reason():
    client, row = caller(), started()
    url = f"{URL}{row.pk}/abort/"
    problem(client.post(url, {"reason": "x", "version": 99}, format="json"), 409, "stale_version")
    error = problem(client.post(url, {}, format="json"), 400, "invalid")
    assert error["field"] == "reason"
    problem(
        client.post(f"{URL}{row.pk}/roll-back/", {"reason": "x"}, format="json"), 409, "wrong_phase"
    )


def test_a_viewer_may_look_only():
    row = started()
    client = caller("viewer")
    ok(client.get(f"{URL}{row.pk}/"))
    assert client.post(URL, BODY, format="json").status_code == 403
    assert client.post(f"{URL}{row.pk}/abort/", {"reason": "x"}, format="json").status_code == 403


def test_the_newest_verdict_is_shown_with_its_figures(figures, agent):
    from controlplane.rollouts import tasks

    row = started(bake_s=600.0)
    obey(agent)
    tasks.evaluate()
    found = ok(caller("viewer").get(f"{URL}{row.pk}/"))["analysis"]
    assert found["verdict"] == "Inconclusive"
    assert found["has_data"] is False
    assert "the clock stands still" in found["reason"]
