"""`manage.py plan`: the same figures on a terminal."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

pytestmark = pytest.mark.django_db


def plan(*words):
    out = StringIO()
    call_command("plan", *words, stdout=out)
    return out.getvalue()


def test_it_prints_inputs_with_sources_and_steps_with_reasons():
    said = plan("--model", "qwen2.5-7b", "--context-tokens", "8192",
                "--peak-requests-per-s", "200", "--replica-requests-per-s", "50")  # fmt: skip
    assert "Replicas: 6 replicas" in said
    assert "rounded up = ⌈200 / 50 × 1.3⌉ = ⌈5.2⌉" in said
    assert "KV cache of a request: 448 MiB" in said
    assert "Requests at once on a replica: —" in said
    assert "Layers: 28 (Qwen/Qwen2.5-7B-Instruct config.json)" in said


def test_a_warning_is_marked():
    said = plan("--peak-requests-per-s=1", "--replica-requests-per-s=1", "--buffer-ratio=0")
    assert "! 1 replica carries 1 requests/s with 0 % to spare. Usual are 30 to 50 %." in said


def test_a_pool_is_planned_with_what_it_tells(pool, roll_up):
    at = roll_up(21.0, ago=timedelta(hours=3))
    said = plan("--pool", "chat")
    assert "Peak: 21 requests/s (busiest 5 s of pool chat" in said
    assert f"of {at:%Y-%m-%d %H:%M} UTC)" in said
    assert "Not calculated, for want of productivity of a replica." in said


def test_what_a_pool_cannot_tell_is_said(pool):
    assert "Peak: not known: nothing was reported of pool chat in 90 days" in plan("--pool=chat")


def test_json_is_what_the_api_answers():
    body = json.loads(plan("--json", "--parameters", "7.6e9"))
    assert round(body["results"]["weights"] / 1024**3, 1) == 14.2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model=qwen2.5-32b", "--gpu=l4"], "does not fit"),
        ([], "Nothing can be calculated"),
        (["--pool=nowhere"], "There is no pool 'nowhere'"),
        (["--gpu=tpu"], "known are a100-80gb"),
    ],
)
def test_what_cannot_be_planned_ends_with_the_reason(words, told):
    with pytest.raises(CommandError, match=told):
        plan(*words)
