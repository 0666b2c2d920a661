"""Load as the scraper sees it: figures or a reason, never a made-up zero."""

from __future__ import annotations

import random

import pytest

from routing_agent.core.replica_report import report_of
from routing_agent.engine.base import EngineLoad
from routing_agent.engine.scrape import Scraper, generated_since, went_back
from routing_agent.http_client import HttpClient
from tests.agent.engine.pages import Pages, vllm_metrics
from tests.agent.engine.test_probe import watched


@pytest.fixture
async def engine():
    engine = await Pages({"/metrics": (200, vllm_metrics())}).start()
    yield engine
    await engine.stop()


@pytest.fixture
async def client():
    client = HttpClient()
    yield client
    await client.close()


def scraped(engine, client, **options):
    replica, _, fleet = watched(engine, client, **options)
    return replica, Scraper(fleet, client, random.Random(1))


async def test_figures_arrive_in_the_products_units(engine, client):
    replica, scraper = scraped(engine, client)
    await scraper.visit(replica)
    figures = replica.figures
    assert (figures.running, figures.waiting, figures.kv_usage) == (1, 0, 0.5)
    assert replica.scraped_at is not None
    assert replica.process_started_at == 1000.0
    assert scraper.pause_s(replica) == replica.settings.scrape_interval_s


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ((200, "<html>gateway</html>"), "web page"),
        ((200, ""), "empty"),
        ((404, "no"), "answered 404"),
        ((200, "up 1\n"), "no metric of vllm"),
    ],
)
async def test_what_cannot_be_read_is_an_error_and_the_figures_keep_their_age(
    engine, client, page, why
):
    replica, scraper = scraped(engine, client)
    await scraper.visit(replica)
    before = replica.scraped_at
    engine.pages["/metrics"] = page
    await scraper.visit(replica)
    assert why in replica.scrape_error
    assert (replica.scraped_at, replica.figures.kv_usage) == (before, 0.5)


async def test_an_engine_never_scraped_shows_no_data_rather_than_zero(engine, client):
    engine.pages.clear()
    replica, scraper = scraped(engine, client)
    await scraper.visit(replica)
    report = report_of(replica, 0.0)
    assert (report.engine_running, report.kv_usage, report.scrape_age_s) == (None, None, None)
    assert report.scrape_error


async def test_nan_is_no_figure(engine, client):
    engine.pages["/metrics"] = (200, vllm_metrics(kv="NaN"))
    replica, scraper = scraped(engine, client)
    await scraper.visit(replica)
    assert replica.figures.kv_usage is None


async def test_a_recovered_scrape_clears_the_error(engine, client):
    replica, scraper = scraped(engine, client)
    engine.pages["/metrics"] = (500, "")
    await scraper.visit(replica)
    engine.pages["/metrics"] = (200, vllm_metrics())
    await scraper.visit(replica)
    assert replica.scrape_error == ""


@pytest.mark.parametrize(
    "after", [{"started": 2000.0}, {"output": 3}], ids=["start-time", "counter-fell"]
)
async def test_another_process_must_warm_up_again(engine, client, after):
    replica, scraper = scraped(engine, client)
    await scraper.visit(replica)
    replica.warmed = True
    engine.pages["/metrics"] = (200, vllm_metrics(**after))
    await scraper.visit(replica)
    assert not replica.warmed


async def test_tokens_counted_by_the_engine_are_signs_of_life(engine, client):
    replica, scraper = scraped(engine, client)
    await scraper.visit(replica)
    assert replica.last_token_at is None
    engine.pages["/metrics"] = (200, vllm_metrics(output=140))
    await scraper.visit(replica)
    assert replica.last_token_at is not None


async def test_a_sleeping_engine_gets_no_new_requests(engine, client):
    asleep = vllm_metrics() + 'vllm:engine_sleep_state{sleep_state="awake"} 0\n'
    engine.pages["/metrics"] = (200, asleep)
    replica, scraper = scraped(engine, client)
    await scraper.visit(replica)
    assert "asleep" in replica.exclusion(0.0)


async def test_an_openai_server_is_left_alone(engine, client):
    replica, scraper = scraped(engine, client, kind="openai")
    await scraper.visit(replica)
    assert engine.calls["/metrics"] == 0
    assert replica.scrape_error == ""


async def test_the_engines_key_is_sent(engine, client):
    replica, scraper = scraped(engine, client, credential="secret")
    await scraper.visit(replica)
    assert engine.requests[0].headers["authorization"] == "Bearer secret"


def test_absent_counters_prove_neither_a_restart_nor_life():
    assert not went_back(EngineLoad(output_tokens_total=5), EngineLoad())
    assert not generated_since(EngineLoad(), EngineLoad(output_tokens_total=5))
