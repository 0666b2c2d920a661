"""LoRA and sleep calls of the simulated engine: vLLM's answers, and what they do to requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from routing_agent.engine.calls import EngineCall
from routing_agent.engine.drivers import driver_for
from routing_agent.simulation import server
from routing_agent.simulation.profiles import A100_QWEN_7B
from tests.agent.waiting import until

from .conftest import RunningEngine

VLLM = driver_for("vllm")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return adapter_in(tmp_path / "style")


def adapter_in(folder: Path, rank: int = 16) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "peft_type": "LORA"}))
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


async def call(engine: RunningEngine, wanted: EngineCall) -> tuple[httpx.Response, str]:
    """Make a call as the agent does; give the answer and what the driver makes of it."""
    answer = await engine.client.request(
        wanted.method, wanted.path, content=wanted.body, headers=wanted.headers
    )
    return answer, wanted.read(answer.status_code, answer.content).outcome


async def load(engine: RunningEngine, name: str, path: Path) -> tuple[httpx.Response, str]:
    return await call(engine, VLLM.adapters.load(name, str(path)))


async def test_a_loaded_adapter_is_a_model_with_words_of_its_own(engine, adapter):
    assert (await load(engine, "style", adapter))[1] == "done"
    models = (await engine.client.get("/v1/models")).json()["data"]
    assert [(m["id"], m["parent"], m["root"]) for m in models] == [
        ("m", None, "m"),
        ("style", "m", str(adapter)),
    ]
    base, styled = (await engine.chat(), await engine.chat(model="style"))
    assert styled.json()["model"] == "style"
    words = [answer.json()["choices"][0]["message"]["content"] for answer in (base, styled)]
    assert words[0] != words[1]


async def test_adapters_share_no_cached_prompt_with_their_base(start_engine, adapter):
    engine = await start_engine()
    await load(engine, "style", adapter)
    for model in ("m", "style"):
        await engine.chat("x" * 4000, model=model, max_tokens=5)
    assert await engine.metric("prefix_cache_hits_total") == 0


async def test_an_unloaded_adapter_is_no_model_any_more(engine, adapter):
    await load(engine, "style", adapter)
    assert (await call(engine, VLLM.adapters.unload("style")))[1] == "done"
    answer = await engine.chat(model="style")
    assert answer.status_code == 404
    assert "The model `style` does not exist" in answer.json()["error"]["message"]
    again, outcome = await call(engine, VLLM.adapters.unload("style"))
    assert again.status_code == 404
    assert outcome == "already"  # out is out


async def test_loading_twice_is_refused_in_words_that_mean_it_is_there(engine, adapter):
    await load(engine, "style", adapter)
    answer, outcome = await load(engine, "style", adapter)
    assert answer.status_code == 400
    assert outcome == "already"


@pytest.mark.parametrize(
    ("name", "file", "status", "told"),
    [
        ("x", None, 404, "Loading lora x failed: No adapter found for "),
        ("x", "adapter_model.safetensors", 500, "doesn't contain tensors"),
        ("", "", 400, "Both 'lora_name' and 'lora_path' must be provided."),
        ("m", "", 400, "The lora adapter 'm' conflicts with a served base model."),
    ],
)
async def test_what_cannot_be_loaded_is_refused(engine, adapter, name, file, status, told):
    if file:
        (adapter / file).unlink()
    path = adapter if file is not None else adapter / "missing"
    answer, outcome = await load(engine, name, path)
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]
    assert outcome == "rejected"


async def test_a_rank_above_the_limit_is_refused(engine, tmp_path):
    answer, outcome = await load(engine, "big", adapter_in(tmp_path / "big", rank=128))
    assert answer.status_code == 500
    assert "LoRA rank 128 is greater than max_lora_rank 64." in answer.text
    assert outcome == "rejected"


async def test_a_body_without_its_fields_is_told_which(engine):
    answer = await engine.client.post("/v1/load_lora_adapter", json={"lora_name": "x"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "body.lora_path"


async def test_metrics_tell_the_running_adapters_and_who_is_deferred(start_engine, tmp_path):
    engine = await start_engine(adapter_slots=1)
    for name in ("a", "b"):
        await load(engine, name, adapter_in(tmp_path / name))
    await engine.open_stream(model="a", max_tokens=20_000)
    asked = asyncio.create_task(engine.chat(model="b", max_tokens=1))
    await until(lambda: engine.server.engine.scheduler.deferred)
    figures = await engine.metrics()
    deferred = [v for k, v in figures.items() if 'reason="deferred"' in k]
    (told,) = (k for k in figures if k.startswith("vllm:lora_requests_info"))
    assert deferred == [1.0]
    assert 'max_lora="1",running_lora_adapters="a"' in told
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


async def test_asleep_requests_wait_and_are_answered_once_it_is_awake(engine):
    answer, outcome = await call(engine, VLLM.sleep.sleep)
    assert answer.json() == {"status": "sleeping", "level": 1}
    assert outcome == "done"
    assert (await engine.client.get("/is_sleeping")).json() == {"is_sleeping": True}
    asked = asyncio.create_task(engine.chat(max_tokens=3))
    await asyncio.wait([asked], timeout=0.05)
    assert not asked.done()
    assert await engine.metric("num_requests_waiting") == 0
    assert (await call(engine, VLLM.sleep.wake))[0].json() == {"status": "awake", "tags": None}
    assert (await asked).status_code == 200
    assert (await engine.client.get("/is_sleeping")).json() == {"is_sleeping": False}


async def test_sleep_loses_the_cache_and_interrupted_answers_are_still_right(start_engine):
    engine = await start_engine(speed=50.0)
    prompt = {"text": "y" * 4000, "max_tokens": 400, "ignore_eos": True}
    before = await engine.chat(**prompt)
    asked = asyncio.create_task(engine.chat(**prompt))
    await until(lambda: engine.server.engine.scheduler.running)
    await call(engine, VLLM.sleep.sleep)
    await call(engine, VLLM.sleep.wake)
    after = await asked
    assert after.json()["choices"] == before.json()["choices"]
    assert engine.server.engine.scheduler.pool.used == 0


async def test_waking_one_that_is_awake_changes_nothing(engine):
    await call(engine, VLLM.sleep.wake)
    assert (await engine.chat(max_tokens=3)).status_code == 200


async def test_clearing_the_fault_switches_wakes_one_that_was_put_to_sleep(engine):
    await call(engine, VLLM.sleep.sleep)
    asked = asyncio.create_task(engine.chat(max_tokens=3))
    await until(lambda: engine.server.engine.jobs)
    await engine.client.delete("/simulate/faults")
    assert (await asked).status_code == 200


async def test_a_level_of_sleep_that_does_not_exist_is_refused(engine):
    answer = await engine.client.post("/sleep?level=3")
    assert answer.status_code == 400
    assert "the level of sleep is 1 or 2" in answer.text


async def test_a_cold_start_takes_its_time_unless_it_is_stopped():
    stop = asyncio.Event()
    fast = A100_QWEN_7B.faster(1e6)
    assert not await server._stopped_while_loading("hub", fast, stop)
    stop.set()
    assert await server._stopped_while_loading("hub", A100_QWEN_7B, stop)
