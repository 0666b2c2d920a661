"""One database filled with roll-ups, and what pages, the API, rolling up and forgetting take.

Started by `bench.telemetry` with DATABASE_URL set; prints its figures as JSON on the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

ROUNDS = 5


def main(words: list[str]) -> int:
    """Fill, measure, forget."""
    options = _parser().parse_args(words)
    os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"
    import django
    from django.conf import settings

    django.setup()
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.STORAGES["staticfiles"] = {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
    }
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    print(json.dumps(_measured(options)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for name, default in (("days", 30), ("replicas", 1000), ("pools", 50), ("tenants", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    from bench import telemetry_data as data

    fleet = data.Fleet(replicas=options.replicas, pools=options.pools, tenants=options.tenants)
    _make_rows(fleet)
    from controlplane.telemetry.rolling import roll

    told, shape = data.minutes(fleet), fleet.topology()
    began, used = time.monotonic(), time.process_time()
    made = [roll(minute, shape) for minute in told]
    rolling = _shown_ms(
        (time.monotonic() - began) * 1000 / len(made),
        (time.process_time() - used) * 1000 / len(made),
    )
    # The minutes end with the last full hour, so that one more minute and its hour can be written.
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    for progress in data.fill(made, end, options.days):
        print(f"  {progress}", file=sys.stderr, flush=True)
    return {
        "rows": data.counts(),
        "database_mib": _size_mib(),
        "pages_ms": _pages(fleet),
        "writing_ms": {"roll a minute up": rolling} | _writing(made, end),
        "retention": _retention(end),
    }


def _make_rows(fleet: Any) -> None:
    from django.contrib.auth.models import User

    from controlplane.catalog.models import Model, ModelVersion
    from controlplane.domain.replica_states import State
    from controlplane.fleet.models import Agent, Node, Pool, Replica
    from controlplane.tenants.models import Tenant

    now = datetime.now(UTC)
    User.objects.create_superuser("bench", password="x")
    models = [Model.objects.create(name=f"model-{i}") for i in range(5)]
    versions = [ModelVersion.objects.create(model=m, name="v1") for m in models]
    pools = [
        Pool.objects.create(
            slug=f"pool-{i:02}", model_version=versions[i % 5], overload_policy="queue"
        )
        for i in range(fleet.pools)
    ]
    nodes = Node.objects.bulk_create(
        Node(name=f"node-{n}", gpus=[{"index": i} for i in range(8)]) for n in range(fleet.nodes)
    )
    Agent.objects.bulk_create(
        Agent(node=node, public_id=f"agt-{n}", token_sha256=f"{n:064}", traffic_url="http://a",
              admin_url="http://a", last_seen_at=now) for n, node in enumerate(nodes)
    )  # fmt: skip
    Replica.objects.bulk_create(
        Replica(pool=pools[i % fleet.pools], public_id=f"rpl-{i}", node=nodes[i // 8],
                url=f"http://10.0.0.1:{10000 + i}", gpu_indices=[i % 8], state=State.READY,
                state_since=now) for i in range(fleet.replicas)
    )  # fmt: skip
    Tenant.objects.bulk_create(
        Tenant(slug=f"tenant-{i:03}", name=f"Tenant {i}") for i in range(fleet.tenants)
    )


def _size_mib() -> dict[str, float]:
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return {"file": round(Path(connection.settings_dict["NAME"]).stat().st_size / 2**20)}
        cursor.execute(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class WHERE relkind = 'r' AND "
            "relname IN ('telemetry_rollup', 'telemetry_memberrollup') ORDER BY relname"
        )
        sizes = {name: round(size / 2**20) for name, size in cursor.fetchall()}
        cursor.execute("SELECT pg_database_size(current_database())")
        return sizes | {"database": round(cursor.fetchone()[0] / 2**20)}


def _pages(fleet: Any) -> dict[str, str]:
    from django.contrib.auth.models import User
    from django.test import Client

    from controlplane.catalog.models import ModelVersion

    client = Client()
    client.force_login(User.objects.get())
    version = ModelVersion.objects.order_by("pk")[0]
    paths = [
        f"{page}?window={window}"
        for page in ("/fleet/", "/pools/pool-01/", "/replicas/rpl-1/", "/nodes/node-1/",
                     f"/versions/{version.pk}/", "/tenants/tenant-001/")
        for window in ("1h", "24h", "30d")
    ]  # fmt: skip
    api = "/api/v1/series/?level={}&subject={}&chart={}&window={}"
    paths += [
        api.format(*asked)
        for asked in (("fleet", "", "ttft", "24h"), ("fleet", "", "ttft", "30d"),
                      ("pool", "pool-01", "ttft", "24h"), ("pool", "pool-01", "kv", "30d"),
                      ("replica", "rpl-1", "kv", "24h"), ("node", "node-1", "memory", "24h"),
                      ("tenant", "tenant-001", "requests", "30d"))
    ]  # fmt: skip
    paths += [
        "/live/tenants/tenant-001/requests.json?window=30d",
        "/live/fleet/pools.json?window=24h",
        *("/", "/pools/", "/api/v1/pools/", "/api/v1/replicas/"),
    ]
    return {path: _median_ms(partial(_get, client, path)) for path in paths}


def _get(client: Any, path: str) -> None:
    from controlplane.fleet.views import charts
    from controlplane.telemetry import source

    source._points.clear()
    charts._bodies.clear()
    response = client.get(path)
    assert response.status_code == 200, (path, response.status_code)


def _median_ms(call: Callable[[], Any]) -> str:
    """Measure a call: wall clock, and of it this process's processor time, on a shared machine."""
    call()
    walls, processors = [], []
    for _ in range(ROUNDS):
        began, used = time.monotonic(), time.process_time()
        call()
        walls.append((time.monotonic() - began) * 1000)
        processors.append((time.process_time() - used) * 1000)
    return _shown_ms(statistics.median(walls), statistics.median(processors))


def _shown_ms(wall: float, processor: float) -> str:
    return f"{wall:.0f} ({processor:.0f} CPU)"


def _writing(made: list[Any], end: datetime) -> dict[str, str]:
    from controlplane.telemetry import services

    later = iter(range(1000))
    return {
        "write a minute": _median_ms(
            lambda: services.write_minute(end + timedelta(minutes=next(later)), made[0])
        ),
        "put an hour together": _median_ms(lambda: services.write_hour(end - timedelta(hours=1))),
    }


def _retention(end: datetime) -> dict[str, Any]:
    """Forget a day's worth of minutes and hours, as retention would over a day."""
    from bench import telemetry_data as data
    from controlplane.telemetry import services
    from controlplane.telemetry.models import MemberRollUp, RollUp, Step

    before = data.counts()
    cut = {
        Step.MINUTE: end - timedelta(hours=24),
        Step.HOUR: RollUp.objects.filter(step_s=Step.HOUR).earliest("at").at + timedelta(days=1),
    }
    began = time.monotonic()
    deleted = services.forget(minutes_before=cut[Step.MINUTE], hours_before=cut[Step.HOUR])
    taken_s = time.monotonic() - began
    left = [
        model._default_manager.filter(step_s=step, at__lt=at).count()
        for model in (RollUp, MemberRollUp)
        for step, at in cut.items()
    ]
    assert left == [0, 0, 0, 0]
    assert sum(before.values()) - sum(data.counts().values()) == deleted
    return {"rows forgotten": deleted, "s": round(taken_s, 1), "older rows left": sum(left)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
