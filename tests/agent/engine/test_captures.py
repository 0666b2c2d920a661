"""Scrapes of real engines of all ages, kept beside the checkout: read or refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from routing_agent.engine.base import EngineLoad, NotMetrics, read_models
from routing_agent.engine.drivers import driver_for, engine_of

SHARED = Path(__file__).parents[4] / "shared"
SCRAPES = sorted(
    [*SHARED.glob("metrics_samples/*.txt"), *SHARED.glob("engine_samples/*/metrics*.txt")]
)
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SCRAPES, reason="no sample data beside the checkout (../shared)"),
]


def scrape(name: str) -> str:
    return (SHARED / name).read_text()


def engine_name(path: Path) -> str:
    name = path.name if path.parent.name == "metrics_samples" else path.parent.name
    return next((e for e in ("sglang", "vllm") if name.startswith(e)), "openai")


@pytest.mark.parametrize("path", SCRAPES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_capture_is_read_or_refused_with_a_reason(path):
    try:
        load = driver_for(engine_name(path)).read_load(path.read_text())
    except NotMetrics:
        return  # what it then says is the drivers' test
    assert load.kv_usage is None or 0 <= load.kv_usage <= 1
    for count in (load.running, load.waiting, load.kv_capacity_tokens):
        assert count is None or count >= 0
    assert load.output_tokens_total is None or load.output_tokens_total < 1e9  # never a `_created`


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("engine_samples/sglang/metrics_busy.txt", {"running": 4, "waiting": 4, "kv_usage": 0.03}),
        ("engine_samples/vllm/metrics_prod.txt", {"kv_capacity_tokens": 3200, "awake": True}),
        (
            "metrics_samples/vllm_0.5_2024-08_kubeai-mock.txt",
            {"running": 3, "waiting": 5, "kv_capacity_tokens": 73184},
        ),
        ("metrics_samples/sglang_0.4_2025_docs.txt", {"running": 162, "waiting": 2826}),
        (
            "metrics_samples/vllm_V1_2026-08_large-counters-scientific_trimmed.txt",
            {"kv_capacity_tokens": 66901, "cached_prompt_tokens_total": 630469280.0},
        ),
    ],
)
def test_figures_of_known_captures(name, expected):
    engine = "sglang" if "sglang" in name else "vllm"
    load = driver_for(engine).read_load(scrape(name))
    assert {field: getattr(load, field) for field in expected} == expected


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_engines_are_recognised_by_their_real_model_lists(engine):
    pages = json.loads(scrape(f"engine_samples/{engine}/get_endpoints.json"))
    page = next(p for p in pages if p["request"]["path"] == "/v1/models")
    assert engine_of(read_models(json.dumps(page["body"]).encode())) == engine


def test_a_load_without_figures_is_all_absent():
    assert all(getattr(EngineLoad(), field) is None for field in EngineLoad.__slots__)
