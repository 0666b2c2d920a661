"""The metrics page beside one of a real vLLM 0.32, kept beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.simulation.conftest import RunningEngine

REAL = Path(__file__).parents[4] / "shared" / "engine_samples" / "vllm" / "metrics_prod.txt"


def kinds(page: str) -> dict[str, str]:
    declared = [line.split(" ") for line in page.splitlines() if line.startswith("# TYPE vllm:")]
    return {words[2]: words[3] for words in declared}


def bounds(page: str, name: str) -> set[str]:
    lines = [line for line in page.splitlines() if line.startswith(f"{name}_bucket{{")]
    return {line.split('le="')[1].split('"')[0] for line in lines}


@pytest.mark.shared
@pytest.mark.skipif(not REAL.exists(), reason="no sample data beside the checkout (../shared)")
async def test_every_metric_has_vllms_name_type_and_buckets(engine: RunningEngine) -> None:
    await engine.chat(max_tokens=2)
    page, real = (await engine.client.get("/metrics")).text, REAL.read_text()
    ours = kinds(page)
    assert ours.items() <= kinds(real).items()
    for name in (name for name, kind in ours.items() if kind == "histogram"):
        assert bounds(page, name) >= bounds(real, name), name
