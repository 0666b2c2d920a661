"""REST: plans are calculated, refused in words, and leave no trace."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controlplane.audit.models import AuditEvent
from tests.controlplane.calling import caller, ok, problem

pytestmark = pytest.mark.django_db

URL = "/api/v1/plan/"


def plan(status=200, **body):
    return caller("viewer").post(URL, body, format="json")


def test_the_published_figures_come_out():
    body = ok(
        plan(
            peak_requests_per_s=200,
            replica_requests_per_s=50,
            buffer_ratio=0.3,
            parameters=7_600_000_000,
            layers=28,
            kv_heads=4,
            head_size=128,
            context_tokens=8192,
        )
    )
    results = body["results"]
    assert results["replicas"] == 6
    assert results["kv_per_token"] == 56 * 1024
    assert results["kv_per_request"] == 448 * 1024**2
    assert round(results["weights"] / 1024**3, 1) == 14.2
    assert results["concurrency"] is None  # no GPU was named
    steps = {s["name"]: s for s in body["steps"]}
    assert steps["replicas"]["working"] == "⌈200 / 50 × 1.3⌉ = ⌈5.2⌉"
    assert steps["concurrency"]["status"] == "missing"
    assert "for want of KV cache of a replica" in steps["concurrency"]["reason"]


def test_inputs_tell_where_and_when_they_are_from(pool, roll_up):
    at = roll_up(20.0, ago=timedelta(hours=3))
    body = ok(plan(pool="chat", replica_requests_per_s=5))
    lines = {line["name"]: line for line in body["inputs"]}
    assert lines["peak_requests_per_s"]["value"] == 20
    assert lines["peak_requests_per_s"]["at"][:16] == at.isoformat()[:16]
    assert lines["replica_requests_per_s"]["source"] == "entered"
    assert lines["weight_dtype"] == {
        "name": "weight_dtype",
        "label": "Weights are",
        "value": "bf16",
        "unit": "",
        "source": "registered for version m:v1",
        "at": None,
    }


def test_a_plan_is_not_audited_and_may_be_made_by_a_viewer():
    viewer = caller("viewer")
    before = AuditEvent.objects.count()
    ok(viewer.post(URL, {"model": "qwen2.5-7b"}, format="json"))
    ok(viewer.get(URL))
    assert AuditEvent.objects.count() == before


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "too_little", None),
        ({"model": "qwen2.5-7b", "layers": 3}, "contradiction", "layers"),
        ({"model": "qwen2.5-32b", "gpu": "l4"}, "does_not_fit", "gpus_per_replica"),
        ({"model": "gpt-9"}, "invalid", "model"),
        ({"layers": 1.5}, "invalid", "layers"),
        ({"layers": "28"}, "invalid", "layers"),
        ({"warp": 9}, "invalid", "warp"),
        ({"memory_share": 0}, "invalid", "memory_share"),
    ],
)
def test_bad_input_is_refused_with_its_field(body, code, field):
    told = problem(plan(**body), 400, code)
    assert told.get("field") == field


def test_an_unknown_pool_is_not_found():
    problem(plan(pool="nowhere"), 404, "not_found")


def test_get_tells_what_a_plan_may_name_with_sources():
    body = ok(caller("viewer").get(URL))
    models = {m["name"]: m for m in body["models"]}
    assert models["llama-2-7b"]["kv_heads"] == 32
    assert all(row["source"] for row in [*body["models"], *body["gpus"], *body["defaults"]])
