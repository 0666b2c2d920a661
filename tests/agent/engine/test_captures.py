"""What real engines of all ages said, kept beside the checkout: read to the right values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from routing_agent.core.engine_errors import read_error
from routing_agent.engine.base import EngineLoad, NotMetrics, names_of, read_models
from routing_agent.engine.drivers import driver_for, engine_of

SHARED = Path(__file__).parents[4] / "shared"
SAMPLES = SHARED / "engine_samples"
SCRAPES = sorted(
    [*SHARED.glob("metrics_samples/*.txt"), *SHARED.glob("engine_samples/*/metrics*.txt")]
)
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SCRAPES, reason="no sample data beside the checkout (../shared)"),
]
MAKES = {"vllm": "vllm", "sglang": "sglang", "llama": "llamacpp", "tgi": "tgi", "triton": "triton"}
# The order of figures below; a shorter row leaves out what no capture of that row has.
FIELDS = (
    "running", "waiting", "kv_usage", "kv_capacity_tokens", "prompt_tokens_total",
    "cached_prompt_tokens_total", "output_tokens_total",
)  # fmt: skip
NOTHING = (None,) * len(FIELDS)
EXPECTED = {
    "llama_cpp/metrics.txt": (0, 0, None, None, 639, 391, 27579),
    "llama_cpp/metrics_busy.txt": (2, 5, None, None, 315, 200, 11724),
    "llama_cpp/metrics_idle.txt": (0, 0, None, None, 0, 0, 0),
    "sglang/metrics.txt": (0, 0, 0.0, 8192, 463, 252, 2799),
    "sglang/metrics_busy.txt": (4, 4, 0.03, 8192, 241, 130, 444),
    "sglang/metrics_idle.txt": (0, 0, 0.0, 8192, 21, 1, 40),
    "sglang/metrics_lora_running.txt": (1, *NOTHING[1:]),
    "vllm/metrics.txt": (0, 0, 0.0, 1048576, 668, 0, 8361),
    "vllm/metrics_busy.txt": (0, 0, 0.0, 1048576, 619, 0, 3245),
    "vllm/metrics_idle.txt": (0, 0, 0.0, 1048576, 0, 0, 0),
    "vllm/metrics_lora.txt": NOTHING,
    "vllm/metrics_lora_running.txt": (1, 0, *NOTHING[2:]),
    "vllm/metrics_prod.txt": (0, 0, 0.0, 3200, 1278, 480, 6443),
    "llamacpp_2025-08_ik-fork.txt": (0, 0, 0.491063, 64000, 6886, None, 3469),
    "llamacpp_b10298_2026_no-kv-gauges.txt": (None, None, None, None, 73163, None, 7637),
    "sglang_0.4_2025_docs.txt": (162, 2826, 0.28, None, 8128902, None, 7557572),
    "sglang_2026_via-smg-router_underscored-names_excerpt.txt": NOTHING,
    "sglang_prototype_2024-09_pr1461_excerpt.txt": (0, 0, 0.0, *NOTHING[3:]),
    "tgi-names_2024-04_ibm-vllm-tgis_excerpt_unclosed-histogram.txt": (0, 0, *NOTHING[2:]),
    "triton_tensorrtllm_readme.txt": (1, 1, 0.4875, 399296, None, None, None),
    "vllm_0.25.1_2026-07_lmcache-external-prefix-cache_trimmed.txt": (
        None, None, 0.25, None, None, 32, None,
    ),
    "vllm_0.27.1_2026-09_waiting-by-reason_trimmed.txt": (3, 7, 0.412, None, None, 830, None),
    "vllm_0.5_2024-08_kubeai-mock.txt": (3, 5, 0.0026235242675994863, 73184, 90, None, 2546),
    "vllm_0.6_2024-09_empty-body.txt": "the answer is empty",
    "vllm_0.6_2024-10_headers-only_no-samples.txt": "no metric of vllm in the answer",
    "vllm_0.6_lora-as-model-name_2024-12_proposal-excerpt.txt": (0, 0, *NOTHING[2:]),
    "vllm_0.7_V0_2025-01_aibrix-docs_truncated.txt": (0, 0, 0.0, 1308272, 148, None, 955),
    "vllm_0.8_V1_2025-03_gpu-prefix-cache-counters_excerpt.txt": (0, 0, 0.0, *NOTHING[3:]),
    "vllm_V0-names_2026-09_neuron_no-bucket-rows.txt": (0, 0, 0.0, 4096, 210, None, 2371),
    "vllm_V1_2026-04_idle_with-created-series_truncated.txt": (0, 0, 0.0, None, 0, 0, 0),
    "vllm_V1_2026-08_large-counters-scientific_trimmed.txt": (
        None, None, 0.0, 66901, None, 630469280, None,
    ),
    "vllm_lora_requests_info_2025-02_gaie-issue-354.txt": NOTHING,
    "vllm_mixed_0.5-names_and_2026-names_datadog-fixture.txt": (0, 0, 0.0, 116496, 5, 64, 7),
}  # fmt: skip


def driver_of(path: Path):
    name = path.name if path.parent.name == "metrics_samples" else path.parent.name
    return driver_for(next(make for start, make in MAKES.items() if name.startswith(start)))


def label(path: Path) -> str:
    is_sample = path.parent.name == "metrics_samples"
    return path.name if is_sample else f"{path.parent.name}/{path.name}"


def capture(name: str):
    return json.loads((SAMPLES / name).read_text())


def entries(name: str):
    """Calls of a capture that have an answer."""
    return [e for e in capture(name) if e.get("status") is not None and e["body"] is not None]


def raw(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else json.dumps(body).encode()


@pytest.mark.parametrize("path", SCRAPES, ids=label)
def test_every_scrape_is_read_to_the_right_values_or_says_what_is_missing(path):
    driver, expected = driver_of(path), EXPECTED[label(path)]
    if isinstance(expected, str):
        with pytest.raises(NotMetrics, match=expected):
            driver.read_load(path.read_text())
        return
    load = driver.read_load(path.read_text())
    assert tuple(getattr(load, name) for name in FIELDS) == expected
    missing = driver.missing(load)
    lacking = {name for name in load.__slots__ if getattr(load, name) is None}
    assert set(missing) == lacking
    assert all(len(reason) > 10 for reason in missing.values())


@pytest.mark.parametrize("path", SCRAPES, ids=label)
def test_the_engines_declare_their_metrics_as_the_drivers_do(path):
    declared = dict(re.findall(r"^# TYPE (\S+) (\w+)", path.read_text(), re.M))
    for metric in driver_of(path).metrics.values():
        for name in metric.names:
            family = re.sub(r"_(sum|count)$", "", name) if metric.kind == "histogram" else name
            assert declared.get(family, metric.kind) == metric.kind, name


def test_of_several_stale_series_the_newest_tells_the_running_adapters():
    for name, adapters in (
        ("metrics_samples/vllm_lora_requests_info_2025-02_gaie-issue-354.txt", ("test-lora",)),
        ("engine_samples/vllm/metrics_lora_running.txt", ("lora-a",)),
        ("engine_samples/vllm/metrics_lora.txt", ()),
    ):
        load = driver_for("vllm").read_load((SHARED / name).read_text())
        assert load.running_adapters == adapters


def test_more_adapters_than_slots_show_in_the_newest_series_and_as_waiting():
    for lines in capture("vllm/lora_more_adapters_than_slots.json")["metrics_samples"][:1]:
        load = driver_for("vllm").read_load("\n".join(lines))
        assert (load.running, load.waiting, load.running_adapters) == (2, 2, ("l1", "l2"))


@pytest.mark.parametrize(
    ("make", "folder", "awake", "started"),
    [("vllm", "vllm", True, True), ("sglang", "sglang", None, False)],
)
def test_sleep_and_start_are_told_where_the_engine_tells_them(make, folder, awake, started):
    load = driver_for(make).read_load((SAMPLES / folder / "metrics_idle.txt").read_text())
    assert load.awake is awake
    assert (load.process_started_at is not None) == started
    assert load.steps_total is not None or make == "sglang"


def test_a_sleeping_vllm_says_so_in_its_metrics_and_pages():
    pages = capture("vllm/dev_control.json")
    asleep = next(e for e in pages if (e.get("note") or "").startswith("2 s after"))
    assert driver_for("vllm").read_load("\n".join(asleep["metrics"])).awake is False
    said = {p.path: p.field for p in driver_for("vllm").state_pages}
    bodies = [e["body"] for e in pages if (e.get("request") or {}).get("path") in said]
    assert {"is_paused": True} in bodies
    assert {"is_sleeping": True} in bodies


@pytest.mark.parametrize(
    ("folder", "make", "names"),
    [
        ("vllm", "vllm", ("tiny",)),
        ("sglang", "sglang", ("tiny", "lora-a")),
        ("llama_cpp", "llamacpp", ("tiny",)),
    ],
)
def test_engines_are_recognised_by_their_real_model_lists(folder, make, names):
    pages = capture(f"{folder}/get_endpoints.json")
    page = next(p for p in pages if p["request"]["path"] == "/v1/models")
    models = read_models(raw(page["body"]))
    assert engine_of(models) == make
    assert names_of(models)[: len(names)] == names


@pytest.mark.parametrize(
    ("folder", "make", "facts"),
    [
        ("vllm", "vllm", ("0.32.0", None, None)),  # its long page is cut off in the capture
        ("sglang", "sglang", ("0.5.23", 8192, 4)),
        ("llama_cpp", "llamacpp", ("b0-unknown", 4096, 2)),
    ],
)
def test_version_and_sizes_are_read_from_real_pages(folder, make, facts):
    driver = driver_for(make)
    found = None
    for page in capture(f"{folder}/get_endpoints.json"):
        path = page["request"]["path"]
        if path in driver.fact_paths and page["status"] == 200:
            more = driver.read_facts(path, raw(page["body"]))
            found = more if found is None else found.joined(more)
    assert (found.version, found.kv_capacity_tokens, found.max_running) == facts


@pytest.mark.parametrize("folder", ["vllm", "sglang", "llama_cpp"])
def test_the_pages_that_are_probed_are_good_and_quick_on_a_healthy_engine(folder):
    driver = driver_for(MAKES[folder.split("_")[0]])
    pages = {e["request"]["path"]: e for e in capture(f"{folder}/get_endpoints.json")}
    page = pages[driver.ready_paths[0]]
    assert page["status"] == 200
    assert page["seconds"] < 0.1  # SGLang's /health took 1.0 s


VLLM_LOADS = {
    "missing path": "rejected",
    "folder with adapter_config.json but no weights": "rejected",
    "rank 64 with --max-lora-rank 16": "rejected",
    "empty name": "rejected",
    "name of the base model": "rejected",
    "first load": "done",
    "double load": "already",
}
SGLANG_LOADS = {
    "missing path": "rejected",
    "config but no weights": "rejected",
    "rank 64 with --max-lora-rank 16": "rejected",
    "lora_path left out": "rejected",
    "first load": "done",
    "double load": "already",
    "pinned": "done",
}
UNLOADS = {"unload again": None, "unknown unload": "already"}


@pytest.mark.parametrize(
    ("make", "expected"), [("vllm", VLLM_LOADS), ("sglang", SGLANG_LOADS)], ids=["vllm", "sglang"]
)
def test_every_captured_adapter_call_means_what_it_means(make, expected):
    calls = driver_for(make).adapters
    seen = set()
    for entry in entries(f"{make}/lora_api.json"):
        path, note = entry["request"]["path"], entry["note"]
        body = entry["request"]["body"]
        if path == calls.load_path and note in expected:
            seen.add(note)
            call = calls.load(
                body.get("lora_name", ""), body.get("lora_path", ""), pinned="pinned" in body
            )
            if len(body) > 1:
                assert json.loads(call.body) == body
            verdict = call.read(entry["status"], raw(entry["body"]))
            assert (note, verdict.outcome) == (note, expected[note])
            assert not verdict.may_be_retried
        if path == calls.unload_path and note in UNLOADS:
            verdict = calls.unload(body["lora_name"]).read(entry["status"], raw(entry["body"]))
            assert verdict.ok, note
    assert seen == set(expected)


@pytest.mark.parametrize("make", ["vllm", "sglang"])
def test_a_request_names_the_adapter_as_the_engine_wants_it(make):
    driver = driver_for(make)
    wanted = driver.request_model("tiny", "lora-a")
    texts = {
        e["request"]["body"]["model"]: e["body"]["choices"][0]["message"]["content"]
        for e in reversed(entries(f"{make}/lora_api.json"))
        if e["request"]["path"].endswith("completions") and e["status"] == 200
    }
    assert texts[wanted].startswith(" plea plea plea st7^R7")
    assert texts["tiny"].startswith(" isun rep stA~7<")


def test_captured_control_calls_are_the_drivers():
    vllm = driver_for("vllm").sleep
    wanted = {"/sleep?level=1": vllm.sleep, "/wake_up": vllm.wake, "/resume": vllm.resume}
    for entry in entries("vllm/dev_control.json"):
        call = wanted.pop(entry["request"]["path"], None)
        if call is not None:
            assert call.read(entry["status"], raw(entry["body"])).outcome == "done"
    assert not wanted
    sglang = driver_for("sglang").sleep
    wanted = {"/pause_generation": sglang.pause, "/continue_generation": sglang.resume}
    for entry in entries("sglang/control.json"):
        call = wanted.pop((entry["request"] or {}).get("path"), None)
        if call is not None:
            assert json.loads(call.body) == (entry["request"]["body"] or {})
            assert call.read(entry["status"], raw(entry["body"])).ok
    assert not wanted
    prod = {e["request"]["path"]: e for e in entries("vllm/auth_and_prod_routes.json")}
    answer = prod["/sleep"]
    assert vllm.sleep.read(answer["status"], raw(answer["body"])).outcome == "unavailable"


@pytest.mark.parametrize(
    "name",
    [
        "vllm/errors.json",
        "vllm/auth_and_prod_routes.json",
        "vllm/lora_api.json",
        "sglang/errors.json",
        "sglang/lora_api.json",
        "llama_cpp/errors.json",
        "llama_cpp/auth.json",
        "transformers_serve/requests_and_errors.json",
    ],
)
def test_every_captured_error_has_words_and_a_kind(name):
    failed = [e for e in entries(name) if e["status"] >= 400]
    assert failed
    for entry in failed:
        error = read_error(entry["status"], raw(entry["body"]))
        assert error.message, entry["note"]
        if entry["status"] in (400, 413, 422):
            assert error.kind == "invalid", entry["note"]
        if entry["status"] == 401:
            assert error.kind == "unauthorized"


def test_endings_of_real_engines_are_told_apart():
    drained = capture("vllm/sigterm_drain.json")["requests"]
    crashed = capture("vllm/engine_crash.json")["requests"]
    refused = next(r for r in drained if r["status"] == 500)
    assert read_error(500, raw(refused["tail"])).kind == "stopping"
    broken = next(r for r in crashed if r["status"] == 500)
    assert read_error(500, raw(broken["tail"])).kind == "dead"


def test_a_load_without_figures_is_all_absent():
    assert all(getattr(EngineLoad(), field) is None for field in EngineLoad.__slots__)
