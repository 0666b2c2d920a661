"""Charts of the fleet, versions and tenants, on pages and as numbers: the same, with their gaps."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from controlplane.domain.rollups import Figures
from controlplane.fleet.views import charts
from controlplane.telemetry import rolling, services, source
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import signed_in
from tests.factories import make_agent, make_pool, make_replica, make_tenant, make_version

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def fresh():
    for cache in (source._points, charts._bodies):
        cache.clear()


@pytest.fixture
def rolled():
    """A minute of ten minutes ago, of every level."""
    make_replica(make_pool(), node=make_agent("node-1").node)
    make_tenant()
    at = datetime.fromtimestamp(time.time() // 60 * 60 - 600, UTC)
    figures = Figures(covered_s=60, requests=600, statuses={"200": 600}, ttft={50: 600}, kv_max=0.5)
    names = [("fleet", ""), ("pool", "chat"), ("version", "m:v1"), ("tenant", "acme")]
    names.append(("node", "node-1"))
    rows = {(level, subject, ""): figures for level, subject in names}
    services.write_minute(at, rolling.Rolled(rows=rows))


@pytest.fixture
def series():
    viewer = caller("viewer")
    return lambda **asked: ok(viewer.get("/api/v1/series/", asked))


def known(found, name):
    (line,) = [s["values"] for s in found["series"] if s["name"] == name]
    return [v for v in line if v is not None]


def test_every_level_is_drawn_for_every_window(rolled):
    client = signed_in("viewer")
    version = make_version().pk
    pages = (f"/versions/{version}/", "/tenants/acme/", "/nodes/node-1/", "/pools/chat/")
    shown = [("/fleet/", w) for w in ("5m", "15m", "1h", "6h", "24h", "7d", "30d")]
    for page, window in [*shown, *((page, "6h") for page in pages)]:
        assert client.get(page, {"window": window}).status_code == 200, (page, window)
    for url in (
        "/live/fleet/requests.json",
        f"/live/versions/{version}/ttft.json",
        "/live/tenants/acme/requests.json",
        "/live/nodes/node-1/failures.json",
    ):
        drawn = json.loads(client.get(url, {"window": "6h"}).content)
        assert drawn["state"] == "live", url
        assert drawn["source"].startswith("from minute roll-ups, each point covers 2 min")


def test_the_api_gives_what_the_chart_draws(rolled, series):
    found = series(level="fleet", chart="requests", window="6h")
    assert known(found, "answered") == [10.0]
    assert (found["source"], found["step_s"], found["reason"]) == ("minute roll-ups", 120, "")
    assert len(found["times"]) == len(found["series"][0]["values"]) == 180
    assert found["newest_at"] in found["times"]
    assert known(series(level="version", subject="m:v1", chart="kv", window="1h"), "max") == [0.5]


def test_levels_without_figures_say_why_and_have_no_zeros(rolled, series):
    for level, subject in (("fleet", ""), ("tenant", "acme"), ("pool", "chat")):
        found = series(level=level, subject=subject, chart="requests", window="30d")
        assert (found["series"], found["times"], found["newest_at"]) == ([], [], None)
        assert "Nothing was reported" in found["reason"]


def test_what_does_not_exist_is_named(rolled):
    viewer = caller("viewer")
    for asked, status, code in (
        ({"level": "pool", "subject": "none"}, 404, "not_found"),
        ({"level": "tenant", "subject": "none"}, 404, "not_found"),
        ({"level": "pool", "subject": "chat", "chart": "memory"}, 400, "invalid"),
        ({"level": "planet"}, 400, "invalid"),
        ({"window": "1y"}, 400, "invalid"),
    ):
        problem(viewer.get("/api/v1/series/", asked), status, code)
    assert signed_in("operator").get("/versions/999/").status_code == 404
    assert signed_in("admin").get("/live/tenants/none/requests.json").status_code == 404


def test_each_page_of_charts_costs_a_bounded_number_of_queries(
    rolled, django_assert_max_num_queries
):
    client = signed_in("viewer")
    client.get("/fleet/")
    source._points.clear()
    with django_assert_max_num_queries(20):
        client.get("/fleet/", {"window": "30d"})
