"""What each engine's metrics mean: names, units, absence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from routing_agent.engine.base import NotMetrics, ServedModel, read_models
from routing_agent.engine.drivers import driver_for, engine_of

FIXTURES = Path(__file__).parent / "fixtures"
VLLM, SGLANG, OPENAI = (driver_for(name) for name in ("vllm", "sglang", "openai"))


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        (VLLM, 'vllm:gpu_cache_usage_perc{model_name="m"} 0.42'),
        (VLLM, 'vllm:kv_cache_usage_perc{engine="0"} 0.42'),
        (VLLM, "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.42"),
        (SGLANG, 'sglang:token_usage{tp_rank="0"} 0.42'),
        (SGLANG, "sglang_token_usage 0.42"),
    ],
    ids=["vllm-old", "vllm-new", "vllm-both", "sglang", "sglang-through-its-gateway"],
)
def test_kv_usage_is_the_same_whatever_its_name(driver, text):
    assert driver.read_load(text).kv_usage == pytest.approx(0.42)


@pytest.mark.parametrize(
    "counter", ["vllm:generation_tokens_total", "vllm:generation_tokens"], ids=["total", "bare"]
)
def test_counters_with_and_without_total_count_and_created_never_does(counter):
    text = f"{counter} 7\nvllm:generation_tokens_created 1.7e9\n"
    assert VLLM.read_load(text).output_tokens_total == 7
    with pytest.raises(NotMetrics):
        VLLM.read_load("vllm:generation_tokens_created 1.7e9")


@pytest.mark.parametrize("value", ["NaN", "-1.0", "87.5"])
def test_a_kv_usage_that_is_none_is_absent_not_zero(value):
    load = VLLM.read_load(f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_running 0\n")
    assert load.kv_usage is None
    assert load.running == 0


def test_what_is_not_told_is_none():
    load = VLLM.read_load("vllm:num_requests_running 2\n")
    assert (load.running, load.waiting, load.kv_usage, load.kv_capacity_tokens) == (
        2,
        None,
        None,
        None,
    )


def test_swapped_requests_of_old_versions_wait():
    text = "vllm:num_requests_waiting 2\nvllm:num_requests_swapped 3\n"
    assert VLLM.read_load(text).waiting == 5


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="16",num_gpu_blocks="100"', 1600),
        ('kv_cache_size_tokens="66901",block_size="1568",num_gpu_blocks="49"', 66901),
        ('kv_cache_size_tokens="None",block_size="16",num_gpu_blocks="10"', 160),
        ('block_size="16",num_gpu_blocks="None"', None),
    ],
)
def test_the_size_of_the_cache_is_told_or_worked_out(labels, tokens):
    load = VLLM.read_load(f"vllm:cache_config_info{{{labels}}} 1\n")
    assert load.kv_capacity_tokens == tokens


@pytest.mark.parametrize(("value", "awake"), [("1.0", True), ("0.0", False)])
def test_a_sleeping_engine_says_so(value, awake):
    text = f'vllm:engine_sleep_state{{sleep_state="awake"}} {value}\n'
    assert VLLM.read_load(text).awake is awake


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<html><body>502</body></html>", "web page"),
        ("", "empty"),
        ("  \n", "empty"),
        ("go_goroutines 3\n", "no metric of vllm"),
        ("# HELP vllm:num_requests_running n\n", "no metric of vllm"),
    ],
)
def test_what_is_no_scrape_says_what_it_is(text, why):
    with pytest.raises(NotMetrics, match=why):
        VLLM.read_load(text)


def test_tensor_parallel_ranks_do_not_multiply_sglangs_load():
    text = "\n".join(
        f'sglang:num_running_reqs{{tp_rank="{rank}"}} 4\nsglang:token_usage{{tp_rank="{rank}"}} 0.5'
        for rank in range(8)
    )
    load = SGLANG.read_load(text)
    assert (load.running, load.kv_usage) == (4, 0.5)


def test_a_whole_scrape_of_a_new_vllm():
    load = VLLM.read_load(fixture("vllm_v1.txt"))
    assert (load.running, load.waiting, load.kv_usage) == (4, 9, 0.62)
    assert load.kv_capacity_tokens == 8192 * 128
    assert (load.prompt_tokens_total, load.output_tokens_total) == (619, 3245)
    assert (load.cached_prompt_tokens_total, load.preemptions_total) == (384, 2)
    assert (load.process_started_at, load.awake) == (1795972569.11, True)


def test_a_whole_scrape_of_an_old_vllm():
    load = VLLM.read_load(fixture("vllm_v0.txt"))
    assert (load.running, load.waiting) == (3, 5)
    assert load.kv_usage == pytest.approx(0.0026, abs=1e-4)
    assert load.kv_capacity_tokens == 4574 * 16
    assert load.cached_prompt_tokens_total is None


def test_an_openai_server_is_never_scraped():
    assert OPENAI.metrics_path is None
    assert OPENAI.ready_paths == ("/v1/models", "/health")


def test_the_first_request_asks_for_one_token_or_one_embedding():
    completion = VLLM.first_request("m")
    assert completion.path == "/v1/completions"
    assert json.loads(completion.body)["max_tokens"] == 1
    assert VLLM.first_request("m", embeds=True).path == "/v1/embeddings"


@pytest.mark.parametrize(
    ("owner", "engine"),
    [("vllm", "vllm"), ("sglang", "sglang"), ("me", "openai"), (None, "openai")],
)
def test_an_engine_is_recognised_by_how_it_signs_its_models(owner, engine):
    assert engine_of([ServedModel("m", owned_by=owner)]) == engine


def test_models_and_versions_are_read_or_refused():
    assert read_models(b'{"data": [{"id": "m", "parent": null, "new": 1}]}') == [ServedModel("m")]
    with pytest.raises(ValueError, match="did not answer a list of models"):
        read_models(b"<html>")
    assert VLLM.read_facts("/version", b'{"version": "0.32.0"}').version == "0.32.0"
    assert VLLM.read_facts("/version", b"oops").version == ""
