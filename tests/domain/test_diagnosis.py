"""Diagnosis: a planted cause is named, in the fixed order, and missing figures are told as such."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from controlplane.domain.diagnosis import TITLES, diagnose
from controlplane.domain.diagnosis_steps import Evidence
from controlplane.domain.rollups import Figures
from routing_agent.wire import LATENCY_BOUNDS_S


def bucket(seconds: float) -> int:
    return next(i for i, bound in enumerate(LATENCY_BOUNDS_S) if bound >= seconds)


USUAL = Figures(
    covered_s=300,
    requests=300,
    statuses={"200": 300},
    prompt_tokens=300 * 800,
    cached_tokens=300 * 500,
    output_tokens=300 * 100,
    queue_wait={bucket(0.01): 300},
    tpot={bucket(0.025): 300},
    load_s=300,
    running_s=300 * 4,
    waiting_s=0,
)
FAST = Figures(requests=100, load_s=300, running_s=200)


def evidence(**changes) -> Evidence:
    """Give a pool as usual, with some figures of now changed."""
    return Evidence(
        now=msgspec.structs.replace(USUAL, **changes),
        before=USUAL,
        replicas={"rpl-a": FAST, "rpl-b": FAST, "rpl-c": FAST},
        ready=3,
        live=3,
        tpot_promised_s=0.0333,
    )


QUEUED = {"queue_wait": {bucket(2.0): 300}, "waiting_s": 300 * 30}


def verdicts(found) -> dict[str, str]:
    return {s.name: s.verdict for s in found.steps}


def test_the_order_is_fixed():
    steps = [s.name for s in diagnose("ttft", evidence()).steps]
    assert steps[:3] == ["inputs", "queue", "hit-rate"]


def test_a_pool_as_usual_has_no_cause():
    found = diagnose("ttft", evidence())
    assert set(verdicts(found).values()) == {"no"}
    assert (found.cause_step, found.cause) == ("", "None of these is the cause.")


def test_longer_inputs_are_named_even_when_they_make_a_queue():
    found = diagnose("ttft", evidence(prompt_tokens=300 * 3000, **QUEUED))
    assert found.cause_step == "inputs"
    assert found.cause == "Inputs are longer: 3,000 tokens in the mean, 800 before."
    assert verdicts(found)["queue"] == "yes"


def test_inputs_that_are_a_little_longer_are_no_cause():
    assert diagnose("ttft", evidence(prompt_tokens=300 * 900)).cause_step == ""


def test_a_queue_without_anything_behind_it_is_named_itself():
    found = diagnose("ttft", evidence(**QUEUED))
    assert found.cause_step == "queue"
    assert "Requests queue (" in found.cause
    assert "P95 2." in found.cause or "P95 1.9" in found.cause


def test_a_queue_behind_a_slow_replica_names_the_replica():
    slow = Figures(requests=20, load_s=300, running_s=600)
    seen = replace(evidence(**QUEUED), replicas={"rpl-a": FAST, "rpl-b": slow, "rpl-c": FAST})
    found = diagnose("ttft", seen)
    assert found.cause_step == "slow-replica"
    assert found.cause == "Replica rpl-b is slow: 30.00 s for a request, 2.00 s on the others."
    assert "Drain rpl-b" in found.remedy


def test_a_replica_that_ends_nothing_is_the_slowest():
    stuck = Figures(requests=0, load_s=300, running_s=300 * 8)
    idle = Figures(requests=0, load_s=300, running_s=0)
    blind = Figures(requests=50)
    replicas = {"rpl-a": FAST, "rpl-b": stuck, "rpl-c": FAST, "rpl-d": idle, "rpl-e": blind}
    assert diagnose("ttft", replace(evidence(), replicas=replicas)).cause_step == "slow-replica"


def test_a_queue_behind_lost_replicas_names_them():
    found = diagnose("ttft", replace(evidence(**QUEUED), ready=1))
    assert found.cause_step == "lost-replicas"
    assert "2 of 3 replicas are out" in found.cause


def test_a_queue_behind_more_requests_names_them():
    found = diagnose("ttft", evidence(requests=900, statuses={"200": 900}, prompt_tokens=900 * 800,
                                      cached_tokens=900 * 500, **QUEUED))  # fmt: skip
    assert found.cause_step == "demand"
    assert "3.00 a second, 1.00 before" in found.cause


@pytest.mark.parametrize("queue", [{}, QUEUED], ids=["without a queue", "with a queue"])
def test_colder_caches_are_named(queue):
    found = diagnose("ttft", evidence(cached_tokens=300 * 80, **queue))
    assert found.cause_step == "hit-rate"
    assert "10 % of prompt tokens hit, 62 % before" in found.cause


def test_a_hit_rate_that_moves_by_a_few_points_is_no_cause():
    assert diagnose("ttft", evidence(cached_tokens=300 * 450)).cause_step == ""


def test_engines_that_generate_slower_are_named():
    found = diagnose("ttft", evidence(tpot={bucket(0.08): 300}, **QUEUED))
    assert found.cause_step == "speed"


def test_without_a_figure_there_is_no_verdict_and_the_missing_ones_are_named():
    found = diagnose("ttft", Evidence(now=None, before=None))
    assert set(verdicts(found).values()) == {"no data"}
    assert found.cause.startswith("No cause found; there is no data on input lengths, queue depth")


def test_without_a_baseline_the_present_is_still_shown():
    found = diagnose("ttft", replace(evidence(), before=None))
    inputs = found.steps[0]
    assert (inputs.now, inputs.before, inputs.verdict) == ("800 tokens", "—", "no data")
    assert "Not known before" in inputs.reason
    shown = {s.name: s.now for s in found.steps}
    assert (shown["queue"], shown["hit-rate"]) == ("0.0103 waiting", "62 %")
    assert shown["speed"].endswith(" ms")


def test_a_pool_that_only_fails_has_no_input_length():
    found = diagnose("ttft", evidence(statuses={"503": 300}))
    assert verdicts(found)["inputs"] == "no data"


def test_a_first_prompt_after_none_is_longer():
    before = msgspec.structs.replace(USUAL, prompt_tokens=0, covered_s=0, requests=0)
    found = diagnose("ttft", replace(evidence(), before=before))
    assert verdicts(found)["inputs"] == "yes"
    assert "no prompt tokens before" in found.steps[0].reason
    assert verdicts(found)["demand"] == "no data"


def test_a_queue_that_nobody_told_of_before_is_judged_by_its_wait():
    before = msgspec.structs.replace(USUAL, covered_s=0)
    found = diagnose("ttft", replace(evidence(**QUEUED), before=before))
    assert verdicts(found)["queue"] == "yes"


def test_low_use_is_too_few_requests_or_bound_by_decoding():
    few = diagnose("gpu-low", evidence(running_s=300))
    assert few.cause_step == "few-requests"
    assert "Fewer replicas" in few.remedy
    told = diagnose("gpu-low", replace(evidence(running_s=300), utilization=0.22))
    assert told.steps[0].now == "1.0 running on 3 replicas, GPUs at 22 %"
    bound = diagnose("gpu-low", evidence(output_tokens=300 * 400))
    assert bound.cause_step == "decode-bound"
    assert "no fault" in bound.cause
    assert diagnose("gpu-low", evidence()).cause_step == ""


def test_short_memory_is_concurrency_then_length_then_dtype():
    assert diagnose("oom", evidence(running_s=300 * 40)).cause_step == "concurrency"
    seen = replace(evidence(), kv_capacity_tokens=40_000, context_tokens=131_072, max_running=64)
    assert diagnose("oom", seen).cause_step == "lengths"
    seen = replace(seen, context_tokens=8192, kv_dtype="bf16", kv_usage_max=0.97)
    found = diagnose("oom", seen)
    assert found.cause_step == "kv-dtype"
    assert "limit 64 each" in found.steps[0].now
    assert diagnose("oom", replace(seen, kv_dtype="fp8")).cause_step == ""
    unknown = diagnose("oom", replace(seen, context_tokens=None, kv_dtype=""))
    assert verdicts(unknown) == {"concurrency": "no", "lengths": "no data", "kv-dtype": "no data"}


@pytest.mark.parametrize("question", TITLES)
def test_nothing_known_is_no_verdict_and_no_error(question):
    found = diagnose(question, Evidence(now=None, before=None))
    assert found.cause_step == ""
    empty = diagnose(question, Evidence(now=Figures(), before=Figures()))
    assert empty.cause_step == ""
