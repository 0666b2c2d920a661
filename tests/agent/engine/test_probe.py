"""Health as the prober sees it: busy is not dead, gone is gone, warm means it has answered."""

from __future__ import annotations

import asyncio
import random
import time

import msgspec
import pytest

from routing_agent.core.fleet import Fleet
from routing_agent.engine.probe import Prober
from routing_agent.engine.rounds import Rounds
from routing_agent.http_client import HttpClient
from routing_agent.wire import Endpoint, ModelRoute, Pool, PoolSettings, RoutingTable, WeightedPool
from tests.agent.engine.pages import Pages, models
from tests.agent.waiting import until

QUICK = PoolSettings(probe_interval_s=0.05, probe_timeout_s=0.5)


@pytest.fixture
async def engine():
    engine = await Pages(
        {
            "/health": (200, ""),
            "/version": (200, '{"version": "0.32.0"}'),
            "/v1/models": (200, models("m")),
            "/v1/completions": (200, "{}"),
        }
    ).start()
    yield engine
    await engine.stop()


@pytest.fixture
async def client():
    client = HttpClient()
    yield client
    await client.close()


def watched(engine, client, *, settings=QUICK, kind="vllm", state="ready", **endpoint):
    fleet = Fleet()
    member = Endpoint(replica="r0", url=engine.url, engine=kind, state=state, **endpoint)
    pool = Pool(
        name="p", model="m", version="v", overload="queue", settings=settings, endpoints=(member,)
    )
    route = ModelRoute(model="m", split=(WeightedPool(pool="p"),))
    table = RoutingTable(lineage="l", epoch=1, fleet_revision=0, models=(route,), pools=(pool,))
    fleet.apply(table, now=time.monotonic(), wall=time.time())
    return fleet.replicas["r0"], Prober(fleet, client, random.Random(1)), fleet


async def test_a_healthy_engine_is_healthy_after_one_probe_and_tells_who_it_is(engine, client):
    replica, prober, _ = watched(engine, client)
    await prober.visit(replica)
    assert (replica.health, replica.engine_version, replica.model_names) == (
        "healthy",
        "0.32.0",
        ("m",),
    )


async def test_facts_are_asked_once_not_at_every_probe(engine, client):
    replica, prober, _ = watched(engine, client)
    for _ in range(5):
        await prober.visit(replica)
    assert (engine.calls["/health"], engine.calls["/version"]) == (5, 1)
    replica.note_process(2000.0)
    await prober.visit(replica)
    assert engine.calls["/version"] == 2


async def test_one_or_two_missed_probes_take_nothing_away_the_third_does(engine, client):
    replica, prober, _ = watched(engine, client)
    await prober.visit(replica)
    engine.pages["/health"] = (503, "")
    for _ in range(2):
        await prober.visit(replica)
        assert replica.health == "healthy"
        assert replica.exclusion(time.monotonic()) == ""
    await prober.visit(replica)
    assert replica.health == "unhealthy"
    assert replica.health_reason == "paused or draining: /health answered 503"


async def test_two_good_probes_bring_it_back_and_they_come_quickly(engine, client):
    replica, prober, _ = watched(engine, client, settings=PoolSettings(probe_failures=1))
    engine.pages["/health"] = (500, "")
    await prober.visit(replica)
    assert prober.pause_s(replica) == 1.0
    engine.pages["/health"] = (200, "")
    await prober.visit(replica)
    assert replica.health == "unhealthy"
    await prober.visit(replica)
    assert replica.health == "healthy"
    assert prober.pause_s(replica) == 5.0


async def test_an_engine_that_generates_is_alive_however_slow_its_health_page(engine, client):
    settings = PoolSettings(probe_timeout_s=0.02)
    replica, prober, _ = watched(engine, client, settings=settings)
    engine.hang.add("/health")
    for _ in range(5):
        replica.last_token_at = time.monotonic()
        await prober.visit(replica)
    assert replica.health != "unhealthy"
    replica.last_token_at = time.monotonic() - 60
    for _ in range(3):
        await prober.visit(replica)
    assert replica.health == "unhealthy"
    assert "no answer" in replica.health_reason


async def test_an_engine_that_is_gone_costs_no_waiting(engine, client):
    replica, prober, _ = watched(engine, client, settings=PoolSettings(probe_timeout_s=3600))
    await engine.stop()
    for _ in range(3):
        await prober.visit(replica)
    assert replica.health == "unhealthy"
    assert "connection refused" in replica.health_reason


async def test_a_warming_engine_is_warm_after_its_first_completion(engine, client):
    replica, prober, _ = watched(engine, client, state="warming", credential="secret")
    assert prober.pause_s(replica) <= 1.0
    await prober.visit(replica)
    assert replica.warmed
    request = next(r for r in engine.requests if r.path == "/v1/completions")
    assert b'"model":"m"' in request.body
    assert b'"max_tokens":1' in request.body
    assert request.headers["authorization"] == "Bearer secret"


async def test_an_engine_that_only_embeds_is_warm_after_its_first_embedding(engine, client):
    del engine.pages["/v1/completions"]
    engine.pages["/v1/embeddings"] = (200, "{}")
    replica, prober, _ = watched(engine, client, state="warming")
    await prober.visit(replica)
    assert replica.warmed


async def test_an_engine_that_answers_health_but_no_request_is_not_warm_and_says_why(
    engine, client
):
    engine.pages["/v1/completions"] = (500, "")
    replica, prober, _ = watched(engine, client, state="warming")
    await prober.visit(replica)
    assert not replica.warmed
    assert "first request" in replica.health_reason


async def test_a_ready_engine_gets_no_extra_request(engine, client):
    replica, prober, _ = watched(engine, client)
    await prober.visit(replica)
    assert engine.calls["/v1/completions"] == 0


async def test_an_openai_server_is_probed_by_its_models(engine, client):
    engine.pages = {"/v1/models": (200, models("m", owned_by="me"))}
    replica, prober, _ = watched(engine, client, kind="openai")
    await prober.visit(replica)
    assert replica.health == "healthy"
    assert engine.calls["/health"] == 0


async def test_loaded_adapters_are_told_by_the_model_list(engine, client):
    engine.pages["/v1/models"] = (200, models("lora-a", parent="m"))
    replica, prober, _ = watched(engine, client)
    await prober.visit(replica)
    assert replica.adapters.listed == ("lora-a",)


async def test_the_rounds_follow_the_table(engine, client):
    replica, prober, fleet = watched(engine, client)
    other = await Pages({"/health": (200, "")}).start()
    running = asyncio.ensure_future(prober.run())
    await until(lambda: replica.health == "healthy" and engine.calls["/health"] >= 3)
    pool = fleet.wire_table.pools[0]
    moved = Endpoint(replica="r1", url=other.url)
    table = msgspec.structs.replace(
        fleet.wire_table, epoch=2, pools=(msgspec.structs.replace(pool, endpoints=(moved,)),)
    )
    fleet.apply(table, now=time.monotonic(), wall=time.time())
    await until(lambda: fleet.replicas["r1"].health == "healthy")
    probes = engine.calls["/health"]
    await until(lambda: other.calls["/health"] >= 5)
    assert engine.calls["/health"] <= probes + 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await other.stop()


async def test_a_fault_in_watching_one_replica_does_not_end_the_watching(engine, client, capsys):
    _, _, fleet = watched(engine, client)
    visits = []

    async def visit(replica):
        visits.append(replica.id)
        if len(visits) == 1:
            raise ZeroDivisionError

    rounds = Rounds(fleet, random.Random(1), visit=visit, pause_s=lambda _: 0.01)
    running = asyncio.ensure_future(rounds.run())
    await until(lambda: len(visits) >= 3)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert "visit_failed" in "".join(capsys.readouterr())


async def test_trouble_found_elsewhere_brings_the_next_visit_forward(engine, client):
    """A pause of an hour, then a doubt: it is looked at within a second or so."""
    settings = PoolSettings(probe_interval_s=3600)
    replica, prober, _ = watched(engine, client, settings=settings)
    running = asyncio.ensure_future(prober.run())
    await until(lambda: replica.health == "healthy")
    replica.note_doubt("answers", "draining")
    await until(lambda: not replica.doubts)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert engine.calls["/v1/completions"] == 1
