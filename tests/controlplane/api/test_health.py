"""The probes and figures of the control plane itself."""

import socket

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.utils import OperationalError
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from controlplane import readiness
from tests.controlplane.calling import caller, model, ok, pool, replica

DEAD_REDIS = "redis://127.0.0.1:1/0"


@pytest.fixture
def silent_redis():
    """Give the URL of something that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def figures() -> dict[tuple[str, str], float]:
    answer = Client().get("/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.content.decode())
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_the_process_is_up_without_a_database():
    answer = Client().get("/healthz")
    assert (answer.status_code, answer.content) == (200, b"ok\n")
    assert Client().post("/healthz").status_code == 405


@pytest.mark.django_db
def test_all_there_is_ready():
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_without_redis_it_is_degraded_but_ready(kind, settings, silent_redis):
    settings.CELERY_BROKER_URL = DEAD_REDIS if kind == "dead" else silent_redis
    answer = Client().get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert "Redis does not answer" in answer.json()["redis"]


@pytest.mark.django_db
def test_a_missing_migration_is_named():
    MigrationRecorder(connection).record_unapplied("fleet", "0001_initial")
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["missing_migrations"] == ["fleet.0001_initial"]


def test_a_database_that_is_gone_is_named(monkeypatch):
    def gone():
        raise OperationalError("connection refused")

    monkeypatch.setattr(readiness, "missing_migrations", gone)
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert "connection refused" in answer.json()["database"]


@pytest.mark.django_db
def test_figures_say_how_far_publishing_is_and_where_replicas_stand():
    model()
    pool()
    replica()
    found = figures()
    assert found["signalbox_database_up", ""] == 1
    assert found["signalbox_fleet_revision", ""] > found["signalbox_published_revision", ""]
    assert found["signalbox_agents_behind", ""] == 0
    assert found["signalbox_replicas", "loading"] == 1
    assert found["signalbox_broker_errors_total", ""] >= 0


@pytest.mark.django_db
def test_figures_survive_a_database_that_is_gone(monkeypatch):
    def gone():
        raise OperationalError("connection refused")

    monkeypatch.setattr("controlplane.routing.selectors.publication", gone)
    found = figures()
    assert found["signalbox_database_up", ""] == 0
    assert ("signalbox_broker_errors_total", "") in found


@pytest.mark.django_db
def test_the_system_noun_says_where_publishing_stands():
    model()
    shown = ok(caller("viewer").get("/api/v1/system/"))
    assert shown["publication"]["epoch"] == 0
    assert shown["publication"]["fleet_revision"] >= 1
    assert shown["missing_migrations"] == []
