"""The table an agent makes for itself from what its engines say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routing_agent import standalone
from routing_agent.config import Standalone
from routing_agent.core.table import compile_table
from routing_agent.engine.base import ServedModel
from routing_agent.http_client import HttpClient
from routing_agent.option_values import ClientKey
from routing_agent.standalone import Discovery, Found, build_table, model_names
from routing_agent.wire import PoolSettings, table_digest
from tests.agent.engine.pages import Pages, models
from tests.agent.waiting import until

URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8002")


def config(**fields) -> Standalone:
    defaults: dict[str, Any] = {
        "worker_urls": URLS,
        "settings": PoolSettings(),
        "overload": "queue",
        "engine": None,
        "aliases": {},
        "client_keys": (),
    }
    return Standalone(**defaults | fields)


def found(*ids, engine="vllm") -> Found:
    return Found(engine, tuple(ServedModel(i, root=i) for i in ids))


def built(known, **fields):
    return build_table(config(**fields), known, epoch=1, at=0.0)


def test_engines_of_one_model_form_one_pool():
    table = built({url: found("m") for url in URLS})
    [pool] = table.pools
    assert (pool.name, pool.model) == ("m", "m")
    assert [(e.replica, e.url) for e in pool.endpoints] == [
        ("replica-1", URLS[0]),
        ("replica-2", URLS[1]),
    ]
    assert compile_table(table).faults == ()


def test_the_aliases_an_engine_tells_are_aliases_here():
    known = Found("llamacpp", (ServedModel("m", aliases=("m", "small")),))
    [route] = built({URLS[0]: known}).models
    assert (route.model, route.aliases) == ("m", ("small",))


def test_engines_of_several_models_form_several_pools():
    table = built({URLS[0]: found("chat"), URLS[1]: found("embed", engine="openai")})
    assert [(p.model, p.endpoints[0].engine) for p in table.pools] == [
        ("chat", "vllm"),
        ("embed", "openai"),
    ]


def test_one_engine_with_several_models_is_in_several_pools():
    table = built({URLS[0]: found("a", "b")})
    assert [p.endpoints[0].replica for p in table.pools] == ["replica-1", "replica-1.1"]
    assert compile_table(table).faults == ()


def test_several_names_for_the_same_weights_are_aliases_and_adapters_are_no_models():
    served = (
        ServedModel("m", root="/weights"),
        ServedModel("gpt", root="/weights"),
        ServedModel("lora-a", root="/lora-a", parent="m"),
    )
    assert model_names(served) == [("m", "gpt")]
    table = built({URLS[0]: Found("vllm", served)}, aliases={"mine": "m"})
    assert table.models[0].aliases == ("gpt", "mine")
    assert table.pools[0].endpoints[0].adapters == ("lora-a",)
    compiled = compile_table(table)
    assert compiled.faults == ()
    assert compiled.adapters["local"]["lora-a"].model == "m"


def test_an_adapter_is_any_tenants_and_belongs_to_the_model_it_stands_on():
    served = (ServedModel("m"), ServedModel("a", parent="m"), ServedModel("b", parent="nobody"))
    keys = (ClientKey("0" * 64, "acme"), ClientKey("1" * 64, "bravo"))
    table = built({url: Found("sglang", served) for url in URLS}, client_keys=keys)
    assert [one.name for one in table.adapters] == ["a"]
    compiled = compile_table(table)
    for tenant in ("acme", "bravo"):
        assert compiled.adapters[tenant]["a"].served_name == "a"


def test_a_model_takes_what_its_smallest_engine_takes():
    def sized(*sizes):
        models = (ServedModel("m", max_model_len=size) for size in sizes)
        return {url: Found("vllm", (model,)) for url, model in zip(URLS, models, strict=False)}

    assert built(sized(4096, 2048)).models[0].context_tokens == 2048
    assert built(sized(4096, None)).models[0].context_tokens == 4096
    assert built(sized(None)).models[0].context_tokens is None


def test_an_engine_that_is_not_known_yet_keeps_its_number():
    table = built({URLS[1]: found("m")})
    assert [e.replica for e in table.pools[0].endpoints] == ["replica-2"]


def test_without_keys_it_is_open_and_with_keys_it_is_not():
    assert built({URLS[0]: found("m")}).open_access
    keys = (ClientKey("00" * 32, "acme"), ClientKey("11" * 32, "acme"))
    table = built({URLS[0]: found("m")}, client_keys=keys)
    assert not table.open_access
    assert [t.name for t in table.tenants] == ["acme"]
    assert [k.id for k in table.api_keys] == ["key-1", "key-2"]


def test_the_digest_is_right_and_time_and_number_are_not_in_it():
    one = build_table(config(), {URLS[0]: found("m")}, epoch=1, at=1.0)
    two = build_table(config(), {URLS[0]: found("m")}, epoch=2, at=2.0)
    assert one.digest == two.digest == table_digest(one)


@pytest.fixture
async def engines():
    engines = [await Pages({"/v1/models": (200, models("m"))}).start() for _ in range(2)]
    yield engines
    for engine in engines:
        await engine.stop()


async def test_discovery_asks_until_all_engines_are_known_and_notices_other_models(
    engines, monkeypatch
):
    monkeypatch.setattr(standalone, "ASK_AGAIN_S", 0.01)
    first, second = engines
    second.pages = {"/v1/models": (503, "loading")}
    tables, client = [], HttpClient()
    settings = config(worker_urls=(first.url, second.url), engine_key="secret")
    discovery = Discovery(settings, client, tables.append)
    running = asyncio.ensure_future(discovery.run())
    await until(lambda: second.calls["/v1/models"] >= 3)
    assert [len(t.pools[0].endpoints) for t in tables] == [1]
    assert first.calls["/v1/models"] == 1
    second.pages = {"/v1/models": (200, models("m", owned_by="me"))}
    await until(lambda: len(tables) == 2)
    assert [e.engine for e in tables[1].pools[0].endpoints] == ["vllm", "openai"]
    assert second.requests[0].headers["authorization"] == "Bearer secret"
    monkeypatch.setattr(standalone, "REFRESH_S", 0.01)
    first.pages = {"/v1/models": (200, models("other"))}
    await until(lambda: len(tables) == 3)
    assert [t.epoch for t in tables] == [1, 2, 3]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await client.close()


async def test_an_engine_that_talks_nonsense_is_left_out_and_complained_about_once(
    engines, monkeypatch, capsys
):
    monkeypatch.setattr(standalone, "ASK_AGAIN_S", 0.01)
    first, _ = engines
    first.pages = {"/v1/models": (200, "<html>")}
    tables, client = [], HttpClient()
    running = asyncio.ensure_future(
        Discovery(config(worker_urls=(first.url,)), client, tables.append).run()
    )
    await until(lambda: first.calls["/v1/models"] >= 5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await client.close()
    assert tables == []
    assert "".join(capsys.readouterr()).count("engine_not_known_yet") == 1
