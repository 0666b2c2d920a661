"""Profiles: what is derived fits what is known, and what cannot be is refused."""

from __future__ import annotations

import dataclasses

import pytest

from routing_agent import hardware
from routing_agent.simulation import loading
from routing_agent.simulation.profiles import A100_QWEN_7B, PROFILES, derived, prefill_only
from routing_agent.simulation.sequences import Request
from routing_agent.simulation.virtual import VirtualEngines


def test_the_reference_pair_is_what_its_own_derivation_gives():
    again = derived(hardware.GPUS["a100-80gb"], hardware.MODELS["qwen2.5-7b"])
    for name in ("prefill_tokens_per_s", "decode_step_s", "decode_step_per_sequence_s",
                 "kv_blocks"):  # fmt: skip
        assert getattr(again, name) == pytest.approx(getattr(A100_QWEN_7B, name), rel=0.02), name
    assert again.weights_bytes == A100_QWEN_7B.weights_bytes
    assert again.kv_bytes_per_token == A100_QWEN_7B.kv_bytes_per_token


def test_the_reference_pair_makes_2500_tokens_a_second_at_32():
    step_s = A100_QWEN_7B.decode_step_s + 32 * A100_QWEN_7B.decode_step_per_sequence_s
    assert 32 / step_s == pytest.approx(2500, rel=0.01)


def test_a_model_that_does_not_fit_a_gpu_has_no_profile_there():
    assert derived(hardware.GPUS["l4"], hardware.MODELS["qwen2.5-14b"]) is None
    assert "l4-qwen2.5-14b" not in PROFILES
    assert "l40s-qwen2.5-14b" in PROFILES


def test_every_figure_of_hardware_names_its_source():
    rows = [*hardware.GPUS.values(), *hardware.MODELS.values(), *loading.LOAD_PATHS.values()]
    assert all(row.source for row in rows)


def test_a_faster_gpu_is_faster_at_everything():
    slow, fast = PROFILES["a100-80gb-qwen2.5-7b"], PROFILES["h100-80gb-qwen2.5-7b"]
    assert fast.prefill_tokens_per_s > slow.prefill_tokens_per_s
    assert fast.decode_step_s < slow.decode_step_s


@pytest.mark.parametrize("figure", ["prefill_tokens_per_s", "kv_blocks", "step_token_budget"])
def test_a_profile_that_no_engine_could_have_is_refused(figure):
    with pytest.raises(ValueError, match=f"{figure} is 0; it must be above 0"):
        dataclasses.replace(A100_QWEN_7B, **{figure: 0})


def test_negative_times_are_refused_but_a_plain_engine_may_have_none():
    assert prefill_only(10.0, kv_blocks=1, block_tokens=1).decode_step_s == 0
    with pytest.raises(ValueError, match="decode_step_s is -1; it must not be negative"):
        dataclasses.replace(A100_QWEN_7B, decode_step_s=-1)


def test_a_cold_start_goes_with_the_weights_and_the_way_they_come():
    small, large = 15_000_000_000, 60_000_000_000
    waits = [loading.cold_start_s(small, path) for path in loading.LOAD_PATHS]
    assert waits == sorted(waits, reverse=True)
    assert loading.cold_start_s(large, "hub") > loading.cold_start_s(small, "hub")
    first = loading.cold_start_s(small, "local-disk", is_first=True)
    assert first > loading.cold_start_s(small, "local-disk")


def test_waking_up_is_much_faster_than_starting():
    weights = A100_QWEN_7B.weights_bytes
    assert loading.wake_s(weights, 1) < 1.0
    assert loading.wake_s(weights, 1) < loading.wake_s(weights, 2)
    assert loading.wake_s(weights, 2) < loading.cold_start_s(weights, "local-disk")


def test_overhead_is_added_to_every_step_and_hides_behind_nothing():
    profile = dataclasses.replace(A100_QWEN_7B, step_overhead_s=0.003)
    assert _time_s(profile, prompt=400, output=1) == pytest.approx(400 / 4300 + 0.003)
    decoding_s = _time_s(profile, prompt=400, output=11) - _time_s(profile, prompt=400, output=1)
    assert decoding_s == pytest.approx(10 * (0.012 + 0.000025 + 0.003))
    assert profile.faster(3).step_overhead_s == pytest.approx(0.001)


def _time_s(profile, *, prompt, output):
    ended = []
    engines = VirtualEngines(profile, 1, lambda _, event: ended.append(event.at))
    engines.submit(0, Request(id="r", prompt_tokens=prompt, output_tokens=output))
    engines.advance(float("inf"))
    return ended[-1]
