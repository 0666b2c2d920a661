"""Calls that change an engine: what is sent, and what each answer means."""

from __future__ import annotations

import json

import pytest

from routing_agent.engine.drivers import driver_for

VLLM, SGLANG = driver_for("vllm"), driver_for("sglang")


def verdict(call, status, body):
    return call.read(status, body if isinstance(body, bytes) else json.dumps(body).encode())


def sglang_answer(message="", *, ok=True):
    return {"success": ok, "error_message": message, "loaded_adapters": {}}


@pytest.mark.parametrize(
    ("driver", "path", "content"),
    [
        (VLLM, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/x/a"}),
        (SGLANG, "/load_lora_adapter", {"lora_name": "a", "lora_path": "/x/a"}),
    ],
    ids=["vllm", "sglang"],
)
def test_a_load_says_name_and_path(driver, path, content):
    call = driver.adapters.load("a", "/x/a")
    assert (call.method, call.path, json.loads(call.body)) == ("POST", path, content)
    assert call.headers == {"content-type": "application/json"}


def test_only_sglang_can_be_asked_to_keep_an_adapter():
    assert json.loads(SGLANG.adapters.load("a", "/x", pinned=True).body)["pinned"] is True
    assert "pinned" not in json.loads(VLLM.adapters.load("a", "/x", pinned=True).body)


@pytest.mark.parametrize("engine", ["llamacpp", "tgi", "triton", "openai"])
def test_other_engines_take_no_adapters_while_they_run(engine):
    driver = driver_for(engine)
    assert (driver.adapters, driver.sleep) == (None, None)


@pytest.mark.parametrize(
    ("driver", "status", "body", "outcome"),
    [
        (VLLM, 200, b"Success: LoRA adapter 'a' added successfully.", "done"),
        (SGLANG, 200, sglang_answer(), "done"),
        (VLLM, 400, {"error": {"message": "'a' has already been loaded.", "code": 400}}, "already"),
        (SGLANG, 400, sglang_answer("a is already loaded", ok=False), "already"),
        (VLLM, 404, {"error": {"message": "No adapter found for <path>", "code": 404}}, "rejected"),
        (SGLANG, 400, sglang_answer("Cannot find any model weights", ok=False), "rejected"),
        (SGLANG, 200, sglang_answer("rank 64 is incompatible", ok=False), "rejected"),
        (VLLM, 404, {"detail": "Not Found"}, "unavailable"),
        (SGLANG, 404, {"detail": "Not Found"}, "unavailable"),
        (VLLM, 401, {"error": "Unauthorized"}, "failed"),
        (VLLM, 500, b"Internal Server Error", "failed"),
        (VLLM, 503, b"", "failed"),
    ],
)
def test_what_the_answer_to_a_load_means(driver, status, body, outcome):
    found = verdict(driver.adapters.load("a", "/x"), status, body)
    assert found.outcome == outcome
    assert found.ok == (outcome in ("done", "already"))


@pytest.mark.parametrize(
    "message",
    [
        "Call to add_lora method failed: Worker failed with error 'LoRA rank 64 is greater than"
        " max_lora_rank 16.', please check the stack trace above for the root cause",
        "Call to add_lora method failed: Worker failed with error '<path> doesn't contain tensors'",
    ],
)
def test_a_500_about_the_adapter_itself_is_not_tried_again(message):
    body = {"error": {"message": message, "type": "InternalServerError", "code": 500}}
    found = verdict(VLLM.adapters.load("a", "/x"), 500, body)
    assert (found.outcome, found.may_be_retried) == ("rejected", False)
    assert "add_lora" in found.message


def test_a_500_of_an_engine_that_shuts_down_is():
    body = {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}
    assert verdict(VLLM.adapters.load("a", "/x"), 500, body).may_be_retried


@pytest.mark.parametrize(
    ("driver", "status", "body", "outcome"),
    [
        (VLLM, 200, b"Success: LoRA adapter 'a' removed successfully.", "done"),
        (VLLM, 404, {"error": {"message": "The lora adapter 'a' cannot be found."}}, "already"),
        (SGLANG, 400, sglang_answer("LoRA with name a does not exist.", ok=False), "already"),
        (VLLM, 404, {"detail": "Not Found"}, "unavailable"),
    ],
)
def test_an_unload_is_safe_to_repeat(driver, status, body, outcome):
    assert verdict(driver.adapters.unload("a"), status, body).outcome == outcome


def test_an_unload_may_wait_for_running_requests_where_the_engine_does():
    assert SGLANG.adapters.unload("a").timeout_s > VLLM.adapters.unload("a").timeout_s


def test_sleep_and_waking_are_calls_too():
    assert VLLM.sleep.sleep.path == "/sleep?level=1"
    assert VLLM.sleep.wake.path == "/wake_up"
    assert (VLLM.sleep.pause.path, VLLM.sleep.resume.path) == ("/pause?mode=wait", "/resume")
    assert SGLANG.sleep.pause.path == "/pause_generation"
    missing = verdict(VLLM.sleep.sleep, 404, {"detail": "Not Found"})
    assert missing.outcome == "unavailable"
    assert "VLLM_SERVER_DEV_MODE" in missing.message
    assert verdict(VLLM.sleep.wake, 200, {"status": "awake", "tags": None}).ok


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ("vllm", "lora-a"),
        ("sglang", "tiny:lora-a"),
        ("tgi", "lora-a"),
        ("llamacpp", None),
        ("triton", None),
        ("openai", None),
    ],
)
def test_how_a_request_names_an_adapter(engine, named):
    driver = driver_for(engine)
    assert driver.request_model("tiny", "lora-a") == named
    assert driver.request_model("tiny", None) == "tiny"
