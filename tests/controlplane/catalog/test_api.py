"""Models with awkward names, and versions, through the API."""

import pytest

from controlplane.catalog.models import Model
from tests.controlplane.calling import caller, model, ok, problem

pytestmark = pytest.mark.django_db
AWKWARD = "org/m-7b:canary"


@pytest.mark.parametrize("spelled", ["org/m-7b:canary", "org%2Fm-7b%3Acanary", "org/m-7b%3acanary"])
@pytest.mark.parametrize("slash", ["/", ""])
def test_a_model_with_slash_and_colon_is_read_changed_and_deleted_by_its_name(spelled, slash):
    model("org/m-7b")  # its name begins the other's
    model(AWKWARD)
    client = caller()
    path = f"/api/v1/models/{spelled}{slash}"
    assert ok(client.get(path))["name"] == AWKWARD
    assert ok(client.patch(path, {"description": "x"}, format="json"))["name"] == AWKWARD
    assert client.delete(path).status_code == 204
    problem(client.get(path), 404, "not_found")
    assert Model.objects.get().name == "org/m-7b"


@pytest.mark.parametrize(
    "text", ["<img src=x onerror=alert(1)>", '<a href="javascript:alert(1)">x</a>', "<b>x</b>"]
)
def test_texts_that_look_like_markup_stay_texts(text):
    body = {"name": "chat", "description": text}
    made = caller().post("/api/v1/models/", body, format="json")
    assert ok(made, 201)["description"] == text
    assert made["Content-Type"] == "application/json"
    assert made["X-Content-Type-Options"] == "nosniff"


def test_a_version_keeps_zero_apart_from_unknown():
    model("chat")
    body = {"model": "chat", "name": "v2", "layers": None, "context_tokens": 32768}
    shown = ok(caller().post("/api/v1/model-versions/", body, format="json"), 201)
    assert (shown["layers"], shown["context_tokens"]) == (None, 32768)


def test_versions_are_found_by_model_and_retired_for_good():
    model("chat")
    model("other")
    client = caller()
    found = ok(client.get("/api/v1/model-versions/?model=chat"))["results"]
    assert [row["model"] for row in found] == ["chat"]
    ok(client.post(f"/api/v1/model-versions/{found[0]['id']}/retire/", {}, format="json"))
    assert ok(client.get("/api/v1/model-versions/?retired=true"))["count"] == 1
    assert ok(client.get("/api/v1/model-versions/?retired=false"))["count"] == 1


def test_a_version_of_no_model_is_refused_by_field():
    body = {"model": "none", "name": "v1"}
    error = problem(caller().post("/api/v1/model-versions/", body, format="json"), 404, "not_found")
    assert error["field"] == "model"


@pytest.mark.parametrize("pk", ["0", "9" * 18, "x"])
def test_a_version_that_is_not_there_is_not_found(pk):
    problem(caller("viewer").get(f"/api/v1/model-versions/{pk}/"), 404, "not_found")
