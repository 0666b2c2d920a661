"""The planner: published figures come out, every step says why, bad input is refused in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain import capacity
from controlplane.domain.amounts import grouped, size, three
from controlplane.domain.errors import Invalid
from controlplane.domain.planning import plan
from controlplane.domain.planning_inputs import BY_NAME, FIELDS, Known, gathered
from routing_agent import hardware
from routing_agent.simulation.profiles import A100_QWEN_7B

GIB, MIB, KIB = 1024**3, 1024**2, 1024
QWEN = {"parameters": 7.6e9, "layers": 28, "kv_heads": 4, "head_size": 128}
LLAMA_2 = {"layers": 32, "kv_heads": 32, "head_size": 128}


def planned(**entered):
    return plan(gathered(entered, {}))


def step(name, **entered):
    return next(s for s in planned(**entered).steps if s.name == name)


def refused(code="invalid", **entered):
    with pytest.raises(Invalid) as caught:
        planned(**entered)
    assert caught.value.code == code
    return caught.value


# -- the published figures (MISSION M6.8) ----------------------------------------------------------


def test_200_requests_a_second_at_50_a_replica_with_30_percent_buffer_are_6_replicas():
    found = step("replicas", peak_requests_per_s=200, replica_requests_per_s=50, buffer_ratio=0.3)
    assert found.value == 6
    assert found.working == "⌈200 / 50 × 1.3⌉ = ⌈5.2⌉"
    assert found.reason == "6 replicas carry 200 requests/s with 30 % to spare."


def test_qwen_2_5_7b_in_bf16_keeps_56_kib_a_token_and_448_mib_at_8192():
    found = planned(**QWEN, kv_dtype="bf16", context_tokens=8192)
    assert found.result("kv_per_token") == 56 * KIB
    assert found.result("kv_per_request") == 448 * MIB


def test_7_6_billion_parameters_in_bf16_are_14_2_gib():
    found = step("weights", parameters=7.6e9, weight_dtype="bf16")
    assert round(found.value / GIB, 1) == 14.2
    assert found.reason == "Weights in bf16 take 14.2 GiB, and have to fit first."


def test_llama_2_7b_in_fp16_keeps_512_kib_a_token_and_2_gib_at_4096():
    found = planned(**LLAMA_2, kv_dtype="fp16", context_tokens=4096)
    assert found.result("kv_per_token") == 512 * KIB
    assert found.result("kv_per_request") == 2 * GIB


@pytest.mark.parametrize(
    ("model", "kv_bytes"), [("qwen2.5-7b", 56 * KIB), ("llama-2-7b", 512 * KIB)]
)
def test_a_named_model_brings_the_facts_that_the_simulation_has(model, kv_bytes):
    found = planned(model=model)
    row = hardware.MODELS[model]
    assert found.result("kv_per_token") == row.kv_bytes_per_token == kv_bytes
    assert found.result("weights") == row.weights_bytes
    assert found.inputs["layers"].source == row.source
    assert found.inputs["context_tokens"].value == row.context_tokens


def test_the_kv_cache_is_the_one_that_the_simulation_derives():
    found = planned(model="qwen2.5-7b", gpu="a100-80gb")
    gpu, model = hardware.GPUS["a100-80gb"], hardware.MODELS["qwen2.5-7b"]
    assert found.result("kv_cache") == hardware.kv_bytes(gpu, model)
    tokens = found.result("kv_cache") / found.result("kv_per_token")
    assert tokens == pytest.approx(A100_QWEN_7B.kv_capacity_tokens, rel=0.02)


def test_an_a100_holds_119_requests_of_8192_tokens_of_qwen_2_5_7b():
    found = step("concurrency", model="qwen2.5-7b", gpu="a100-80gb", context_tokens=8192)
    assert found.value == 119  # (80 GB x 0.92 - 2 GB - 15.23 GB) / 448 MiB
    assert "119 requests of 8\u202f192 tokens" in found.reason


def test_six_a100_for_a_month_cost_what_is_published_for_one_times_six():
    found = planned(peak_requests_per_s=200, replica_requests_per_s=50)
    assert found.result("usd_per_month") == 6 * 2.5 * 730  # 1,825 each; published 1,500 to 2,200


# -- what results mean -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("each", "status", "told"),
    [
        (50, "ok", "Below the band of 70 to 85 %"),  # 67 %
        (44, "ok", "Within the band"),  # 6 replicas, 76 %
        (34, "ok", "Within the band"),
    ],
)
def test_utilisation_at_the_peak_is_judged_by_the_band(each, status, told):
    found = step("utilisation_at_peak", peak_requests_per_s=200, replica_requests_per_s=each)
    assert (found.status, told in found.reason) == (status, True)


def test_too_little_buffer_is_named_and_its_risk_too():
    given_ = {"peak_requests_per_s": 100, "replica_requests_per_s": 50, "buffer_ratio": 0}
    assert step("replicas", **given_).status == "warning"
    assert "Usual are 30 to 50 %" in step("replicas", **given_).reason
    used = step("utilisation_at_peak", **given_)
    assert (used.value, used.status) == (1.0, "warning")
    assert "a replica lost at the peak is felt" in used.reason


def test_no_load_needs_no_replica_and_that_is_not_no_data():
    found = planned(peak_requests_per_s=0, replica_requests_per_s=50)
    assert found.result("replicas") == 0
    assert found.result("utilisation_at_peak") == 0.0
    assert found.result("usd_per_month") == 0.0
    assert found.result("weights") is None
    assert found.result("no such step") is None


def test_below_four_replicas_one_pool_is_enough_and_the_planner_says_so():
    few = step("pools", peak_requests_per_s=100, replica_requests_per_s=50)
    assert (few.value, few.reason[:19]) == (1, "One pool is enough:")
    many = step("pools", peak_requests_per_s=200, replica_requests_per_s=50)
    assert (many.value, "possible" in many.reason) == (2, True)


def test_a_context_that_does_not_fit_once_is_a_warning_with_a_remedy():
    found = step("concurrency", model="qwen2.5-32b", gpu="a100-80gb", context_tokens=32_768,
                 memory_share=0.9)  # fmt: skip
    assert (found.value, found.status) == (0, "warning")
    assert "Not even one request of 32\u202f768 tokens fits" in found.reason


def test_where_memory_is_not_the_limit_the_engines_own_is_named():
    found = step("concurrency", model="qwen2.5-7b", gpu="a100-80gb", context_tokens=512)
    assert found.value > hardware.MAX_RUNNING_SEQUENCES
    assert "--max-num-seqs" in found.reason


def test_more_gpus_than_kv_heads_hold_heads_twice():
    one = step("kv_per_token", **QWEN, gpus_per_replica=4)
    two = step("kv_per_token", **QWEN, gpus_per_replica=8)
    assert two.value == 2 * one.value
    assert "8 GPUs hold 4 heads 2 times" in two.reason


def test_a_step_that_lacks_inputs_is_there_and_names_them():
    found = step("concurrency", model="qwen2.5-7b")
    assert (found.value, found.status) == (None, "missing")
    assert found.reason == "Not calculated, for want of KV cache of a replica."
    found = step("kv_per_token", parameters=1e9)
    assert found.reason == "Not calculated, for want of layers, KV heads and head size."


# -- where inputs are from -------------------------------------------------------------------------


def test_what_is_entered_counts_before_what_a_pool_tells_and_says_so():
    pool = {"peak_requests_per_s": Known(value=10.0, source="pool chat")}
    told = gathered({"replica_requests_per_s": 5.0}, pool)
    assert told["peak_requests_per_s"].source == "pool chat"
    told = gathered({"peak_requests_per_s": 20.0}, pool)
    assert (told["peak_requests_per_s"].value, told["peak_requests_per_s"].source) == (
        20.0,
        "entered",
    )


def test_a_named_model_counts_before_the_pools_version():
    told = gathered({"model": "qwen2.5-7b"}, {"layers": Known(value=99, source="pool chat")})
    assert told["layers"].value == 28


def test_defaults_are_the_documented_ones_and_say_that_they_are():
    told = gathered({}, {})
    assert {n: k.value for n, k in told.items()} == {
        "buffer_ratio": 0.3,
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "gpus_per_replica": 1,
        "memory_share": 0.92,
        "gpu_usd_per_hour": 2.5,
    }
    assert all("default" in k.source for k in told.values())


# -- refused ---------------------------------------------------------------------------------------


def test_from_nothing_nothing_is_calculated_and_the_reader_is_told_what_to_give():
    assert "Name a model" in refused("too_little").message


def test_a_figure_that_contradicts_the_named_model_or_gpu_is_refused():
    problem = refused("contradiction", model="qwen2.5-7b", layers=32)
    assert problem.field == "layers"
    assert problem.message == (
        "Layers is entered as 32, but Qwen/Qwen2.5-7B-Instruct config.json says 28."
        " Leave one of the two out."
    )
    assert refused("contradiction", gpu="l4", gpu_memory_gb=80).field == "gpu_memory_gb"
    assert planned(model="qwen2.5-7b", layers=28).result("weights")  # the same is no contradiction


def test_a_context_beyond_the_models_longest_is_refused():
    problem = refused("contradiction", model="llama-2-7b", context_tokens=8192)
    assert problem.field == "context_tokens"
    assert "longest is 4\u202f096" in problem.message


def test_heads_that_cannot_be_dealt_out_are_refused():
    problem = refused("contradiction", model="qwen2.5-7b", gpus_per_replica=3)
    assert problem.field == "gpus_per_replica"
    assert "4 KV heads cannot be dealt out over 3 GPUs" in problem.message


def test_a_model_that_does_not_fit_is_refused_with_how_many_gpus_it_takes():
    problem = refused("does_not_fit", model="qwen2.5-32b", gpu="l4")
    assert "61.0 GiB" in problem.message
    assert "at least 4 such GPUs" in problem.message
    assert planned(model="qwen2.5-32b", gpu="l4", gpus_per_replica=4).result("kv_cache") > 0


def test_where_no_number_of_gpus_helps_none_is_promised():
    problem = refused("does_not_fit", model="qwen2.5-7b", gpu_memory_gb=2)
    assert "at least" not in problem.message
    assert "larger GPUs" in problem.message


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("flux_capacitor", 1, "Known are: peak_requests_per_s"),
        ("model", "gpt-9", "known are qwen2.5-7b"),
        ("gpu", "tpu", "known are a100-80gb"),
        ("kv_dtype", "int3", "known are fp32"),
        ("layers", 1.5, "it must be a whole number"),
        ("layers", 0, "it must be at least 1 and at most 100000"),
        ("layers", True, "it must be a number"),
        ("layers", "28", "it must be a number"),
        ("peak_requests_per_s", -1, "it must be at least 0."),
        ("peak_requests_per_s", math.nan, "it must be a number"),
        ("replica_requests_per_s", 0, "it must be above 0."),
        ("memory_share", 1.2, "it must be above 0 and at most 1"),
    ],
)
def test_an_impossible_input_is_refused_by_name(name, value, told):
    code = "unknown_input" if name not in BY_NAME else "invalid"
    problem = refused(code, **{name: value})
    assert problem.field == name
    assert told in problem.message


# -- what always holds -----------------------------------------------------------------------------

peaks = st.floats(0, 1e6)
rates = st.floats(0.01, 1e4)
buffers = st.floats(0, 2)


@given(peaks, rates, buffers)
def test_replicas_carry_the_peak_with_its_buffer_and_one_fewer_would_not(peak, each, buffer):
    n = capacity.replicas_needed(peak=peak, per_replica=each, buffer_ratio=buffer)
    wanted = peak * (1 + buffer)
    assert n * each >= wanted * (1 - 1e-6) - 1e-6
    assert n == 0 or (n - 1) * each < wanted


@given(st.sampled_from(sorted(hardware.MODELS)), st.sampled_from(sorted(hardware.GPUS)),
       st.sampled_from([1, 2, 4, 8]), st.integers(1, 4096))  # fmt: skip
def test_requests_at_once_fit_and_one_more_would_not(model, gpu, gpus, tokens):
    entered = {"model": model, "gpu": gpu, "gpus_per_replica": gpus, "context_tokens": tokens}
    pair = hardware.GPUS[gpu], hardware.MODELS[model]
    one_gpu = pair[0].memory_bytes * hardware.MEMORY_SHARE - hardware.ACTIVATION_BYTES
    if gpus * one_gpu <= pair[1].weights_bytes:
        refused("does_not_fit", **entered)
        return
    found = planned(**entered)
    n, each = found.result("concurrency"), found.result("kv_per_request")
    assert n * each <= found.result("kv_cache") * (1 + 1e-6) < (n + 1) * each * (1 + 2e-6)


def test_every_input_has_a_label_and_is_named_once():
    assert len({f.label for f in FIELDS}) == len({f.name for f in FIELDS}) == len(FIELDS)


def test_amounts_keep_three_digits_and_never_an_exponent():
    assert [size(v) for v in (0, 1023, 14.16 * GIB, 448 * MIB, 5000 * 1024**4)] == [
        "0 B",
        "1023 B",
        "14.2 GiB",
        "448 MiB",
        "5000 TiB",
    ]
    assert (three(1.234), three(12.34), three(123.4)) == ("1.23", "12.3", "123")
    assert (three(0.0353), three(0.000244), three(0.05)) == ("0.0353", "0.000244", "0.05")
    assert (three(1e-7), three(0.0), three(-0.012)) == ("0.00", "0", "-0.012")
    assert grouped(7_615_616_512) == "7\u202f615\u202f616\u202f512"
