"""Which model, in console and API: rules are stored, reviewed, published; counts are shown."""

from __future__ import annotations

import json

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.catalog.models import Model
from controlplane.fleet.views import which_model
from controlplane.routing.selectors import fleet_snapshot
from routing_agent import wire
from tests.controlplane.calling import caller, model, ok, problem
from tests.controlplane.staff import signed_in
from tests.factories import make_pool

pytestmark = pytest.mark.django_db
CLASSES = {
    "weights": {"questions": 1.0},
    "classes": [
        {"name": "simple", "model": "small", "below": 0.5},
        {"name": "complex", "model": "large"},
    ],
}


@pytest.fixture
def models():
    for name in ("small", "large", "auto"):
        model(name)


@pytest.fixture
def told(monkeypatch):
    """What two agents tell."""
    paths = (
        wire.ModelPath(
            model="small", path="cascade", answered_by="small", requests=3, output_tokens=90
        ),
        wire.ModelPath(
            model="small", path="escalated", answered_by="large", requests=1, output_tokens=50,
            wasted_tokens=20,
        ),
    )  # fmt: skip
    report = wire.Report(agent="a", number=1, started_at=0.0, sent_at=0.0, paths=paths)
    monkeypatch.setattr(
        which_model.rows, "reports", lambda: {"a": (report, 1.0), "b": (report, 2.0)}
    )


def test_rules_by_api_are_checked_stored_audited_and_published(models):
    client = caller()
    path = "/api/v1/models/auto/"
    ok(client.patch(path, {"complexity": CLASSES, "reason": "save"}, format="json"))
    assert ok(client.get(path))["complexity"] == CLASSES
    error = problem(
        client.patch(path, {"complexity": CLASSES | {"weights": {"x": 1}}}, format="json"),
        400, "invalid",
    )  # fmt: skip
    assert error["field"] == "complexity"
    gone = {"cascade": {"to": "gone"}}
    assert problem(client.patch(path, gone, format="json"), 400, "invalid")["field"]
    own = {"cascade": {"to": "auto"}}
    problem(client.patch(path, own, format="json"), 400, "invalid")
    ok(client.patch("/api/v1/models/small/", {"cascade": {"to": "large"}}, format="json"))
    rows = {row.name: row for row in fleet_snapshot().models}
    assert rows["auto"].complexity == CLASSES
    assert rows["small"].cascade == {"to": "large"}
    assert AuditEvent.objects.filter(verb="model.update", target="auto").first().fleet_revision
    ok(client.patch(path, {"complexity": None}, format="json"))
    assert ok(client.get(path))["complexity"] is None


def test_a_rule_is_reviewed_before_it_is_made(models):
    client = signed_in()
    url = "/which-model/small/edit/"
    assert client.get(url).status_code == 200
    form = {"cascade_to": "large", "min_mean_logprob": "-1", "on_cut": "on", "complexity": ""}
    review = client.post(url, form | {"step": "review", "expected_version": 1})
    ((name, before, after),) = review.context["differences"]
    assert (name, before, after["to"]) == ("cascade", None, "large")
    assert Model.objects.get(name="small").cascade is None
    again = client.post(url, form | {"step": "edit", "expected_version": 1})
    assert b'name="step" value="review"' in again.content
    done = client.post(url, form | {"step": "apply", "expected_version": 1, "reason": "cheaper"})
    assert done["Location"] == "/which-model/"
    assert Model.objects.get(name="small").cascade == {
        "to": "large", "min_mean_logprob": -1.0, "on_cut": True, "on_refusal": False,
    }  # fmt: skip
    assert b"Nothing differs" in client.post(url, form | {"step": "review"}).content
    assert b"Cascade:" in client.get("/which-model/").content


@pytest.mark.parametrize("classes", ["{", '{"classes": []}', json.dumps({"x": 1}), "[" * 5000])
def test_classes_that_are_not_sound_are_told_at_their_field(models, classes):
    answer = signed_in().post("/which-model/auto/edit/", {"complexity": classes})
    assert "complexity" in answer.context["form"].errors


def test_a_class_of_a_model_that_is_not_there_is_told(models):
    rule = {"classes": [{"name": "all", "model": "gone"}]}
    form = {"complexity": json.dumps(rule), "step": "apply", "reason": "x", "expected_version": 1}
    answer = signed_in().post("/which-model/auto/edit/", form)
    assert "gone" in str(answer.context["form"].non_field_errors())


def test_the_page_and_the_api_tell_the_split_and_what_it_saved(models, told):
    Model.objects.filter(name="small").update(cascade={"to": "large"})
    page = signed_in("viewer").get("/which-model/")
    text = page.content.decode()
    assert "escalated" in text
    assert "Saved: 140 output tokens" in text
    assert "Edit rules" not in text
    (line,) = ok(caller("viewer").get("/api/v1/which-model/"))
    assert line["saved_output_tokens"] == 140
    assert line["largest"] == "large"
    assert [p["requests"] for p in line["paths"]] == [6, 2]


def test_pools_by_length_are_shown(models):
    make_pool("short", model="small", settings={"max_input_tokens": 500})
    make_pool("long", model="small")
    text = signed_in("viewer").get("/which-model/").content.decode()
    assert "By length" in text
    assert "up to 500 tokens" in text


def test_a_stored_rule_that_is_not_sound_is_said_on_the_page(models):
    Model.objects.filter(name="small").update(cascade={"too": "large"})
    assert b"problem-box" in signed_in("viewer").get("/which-model/").content


def test_a_viewer_changes_no_rule(models):
    client = signed_in("viewer")
    assert client.get("/which-model/small/edit/").status_code == 403
    assert client.post("/which-model/small/edit/", {"step": "apply"}).status_code == 403
