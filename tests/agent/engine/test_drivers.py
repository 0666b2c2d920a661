"""What each engine's metrics mean: names, units, absence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from routing_agent.engine.base import NotMetrics, ServedModel, names_of, read_models
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
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("llamacpp", "llamacpp"),
        ("Triton Inference Server", "triton"),
        ("me", "openai"),
        (None, "openai"),
    ],
)
def test_an_engine_is_recognised_by_how_it_signs_its_models(owner, engine):
    assert engine_of([ServedModel("m", owned_by=owner)]) == engine


def test_models_and_versions_are_read_or_refused():
    assert read_models(b'{"data": [{"id": "m", "parent": null, "new": 1}]}') == [ServedModel("m")]
    with pytest.raises(ValueError, match="did not answer a list of models"):
        read_models(b"<html>")
    assert VLLM.read_facts("/version", b'{"version": "0.32.0"}').version == "0.32.0"
    assert VLLM.read_facts("/version", b"oops").version == ""


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (
            "sglang",
            {"running": 4, "waiting": 2, "kv_usage": 0.5, "kv_capacity_tokens": 8192,
             "prompt_tokens_total": 141, "cached_prompt_tokens_total": 30,
             "output_tokens_total": 60, "steps_total": 160},
        ),
        (
            "llamacpp",
            {"running": 3, "waiting": 2, "prompt_tokens_total": 420,
             "cached_prompt_tokens_total": 120, "output_tokens_total": 4000, "steps_total": 2600},
        ),
        (
            "tgi",
            {"running": 4, "waiting": 6, "prompt_tokens_total": 1400, "output_tokens_total": 900,
             "steps_total": 509},
        ),
        (
            "triton",
            {"running": 12, "waiting": 3, "max_running": 64, "kv_usage": 0.25,
             "kv_capacity_tokens": 128000, "steps_total": 777},
        ),
    ],
)  # fmt: skip
def test_a_whole_scrape_of_each_other_engine(engine, expected):
    driver = driver_for(engine)
    load = driver.read_load(fixture(f"{engine}.txt"))
    told = {name for name in load.__slots__ if getattr(load, name) is not None}
    assert {name: getattr(load, name) for name in expected} == expected
    assert told == set(expected)
    assert set(driver.missing(load)) == set(load.__slots__) - told


def test_what_a_scrape_lacks_is_said_with_the_names_that_were_looked_for():
    missing = VLLM.missing(VLLM.read_load("vllm:num_requests_running 2\n"))
    assert missing["kv_usage"] == (
        "no usable sample of vllm:kv_cache_usage_perc or vllm:gpu_cache_usage_perc in the answer"
    )
    assert "development mode" in missing["max_running"]
    assert "running" not in missing


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "tgi", "triton"])
def test_every_metric_has_a_kind_and_belongs_to_one_make(engine):
    driver = driver_for(engine)
    assert {metric.kind for metric in driver.metrics.values()} <= {"gauge", "counter", "histogram"}
    assert len({name.split(":")[0].split("_")[0] for name in driver.families}) == 1
    with pytest.raises(NotMetrics, match=f"no metric of {engine}"):
        driver.read_load("some_other_metric 1\n")


def test_of_many_stale_series_the_newest_tells_which_adapters_run():
    info = 'vllm:lora_requests_info{{running_lora_adapters="{}"}} {}\n'
    text = info.format("old", "1.7e9") + info.format("a,b", "1.8e9") + info.format("", "1.6e9")
    assert VLLM.read_load(text).running_adapters == ("a", "b")
    assert VLLM.read_load(info.format("", "1.8e9")).running_adapters == ()


def test_the_fill_of_tritons_cache_is_worked_out_where_it_is_not_told():
    kv = 'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{}"}} {}\n'
    driver = driver_for("triton")
    assert driver.read_load(kv.format("used", 50) + kv.format("max", 200)).kv_usage == 0.25
    assert driver.read_load(kv.format("used", 50)).kv_usage is None


def test_an_old_llama_cpp_tells_its_size_by_its_fill_in_both_units():
    text = "llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:kv_cache_tokens 1000\n"
    assert driver_for("llamacpp").read_load(text).kv_capacity_tokens == 2000


@pytest.mark.parametrize(
    ("engine", "path", "body", "facts"),
    [
        ("vllm", "/version", {"version": "0.32.0"}, ("0.32.0", None, None)),
        (
            "vllm",
            "/server_info?config_format=json",
            {"vllm_config": {"scheduler_config": {"max_num_seqs": 4}}},
            ("", None, 4),
        ),
        ("vllm", "/server_info?config_format=json", {"vllm_config": "model='x'"}, ("", None, None)),
        (
            "sglang",
            "/v1/loads",
            {
                "version": "0.5",
                "loads": [{"max_total_num_tokens": 10, "max_running_requests": 2}] * 2,
            },
            ("0.5", 20, 4),
        ),
        (
            "sglang",
            "/server_info",
            {"version": "0.4", "max_total_num_tokens": 10, "max_running_requests": 2},
            ("0.4", 10, 2),
        ),
        (
            "llamacpp",
            "/props",
            {"total_slots": 2, "default_generation_settings": {"n_ctx": 2048}, "build_info": "b1"},
            ("b1", 4096, 2),
        ),
        ("llamacpp", "/props", {"total_slots": 2}, ("", None, 2)),
        (
            "tgi",
            "/info",
            {"version": "2.0", "max_batch_total_tokens": 16000, "max_batch_size": None},
            ("2.0", 16000, None),
        ),
        ("triton", "/v2", {"name": "triton", "version": "2.41.0"}, ("2.41.0", None, None)),
        ("openai", "/x", {}, ("", None, None)),
    ],
)
def test_facts_are_read_where_each_engine_tells_them(engine, path, body, facts):
    driver = driver_for(engine)
    found = driver.read_facts(path, json.dumps(body).encode())
    assert (found.version, found.kv_capacity_tokens, found.max_running) == facts
    assert driver.read_facts(path, b"<html>").max_running is None
    assert path in driver.fact_paths or engine == "openai"


def test_facts_of_several_pages_are_joined():
    one = VLLM.read_facts("/version", b'{"version": "1"}')
    two = VLLM.read_facts(
        "/server_info?config_format=json",
        b'{"vllm_config": "{\\"scheduler_config\\": {\\"max_num_seqs\\": 8}}"}',
    )
    assert one.joined(two).max_running == 8
    assert two.joined(one).version == "1"


def test_aliases_are_names_as_good_as_others():
    models = read_models(b'{"data": [{"id": "m", "aliases": ["m", "n"], "created": 7}]}')
    assert names_of(models) == ("m", "n")


def test_tgi_is_known_by_models_signed_with_their_own_name():
    assert engine_of([ServedModel("meta/x", owned_by="meta/x", created=0)]) == "tgi"
    assert engine_of([ServedModel("me", owned_by="me", created=17)]) == "openai"


def test_a_json_answer_is_no_scrape_and_is_called_so():
    with pytest.raises(NotMetrics, match="JSON"):
        VLLM.read_load('{"detail": "x"}')
