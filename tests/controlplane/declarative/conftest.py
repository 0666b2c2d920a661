"""A fleet with one of everything that a file knows."""

from __future__ import annotations

import hashlib
from datetime import date, timedelta

import pytest
from django.utils import timezone

from controlplane.catalog import services as catalog
from controlplane.domain.tables import compile_table
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Replica
from controlplane.reliability import services as reliability
from controlplane.routing import selectors as routing
from controlplane.scaling import services as scaling
from controlplane.tenants import services as tenants
from tests.factories import WHY

GPUS = [{"index": 0, "model": "H100", "memory_bytes": 80 * 10**9}]


@pytest.fixture
def everything(db: None) -> str:
    """Make one of everything; gives the text of the tenant's key."""
    catalog.create_model(name="org/chat", aliases=["chat", "assistant"], **WHY)
    catalog.create_model(name="org/large", **WHY)
    catalog.update_model(name="org/chat", cascade={"to": "org/large", "on_cut": False}, **WHY)
    catalog.create_version(model="org/chat", name="v1", parameters=7_000_000_000, **WHY)
    old = catalog.create_version(model="org/chat", name="v0", **WHY)
    catalog.retire_version(version_id=old.pk, **WHY)
    catalog.create_version(model="org/chat", name="v2", engine_arguments={"b": 1, "a": 2}, **WHY)
    fleet.create_node(name="node-1", zone="a", gpus=GPUS, owner="ml", **WHY)
    made = {"model": "org/chat", **WHY}
    fleet.create_pool(slug="small", version="v1", overload_policy="reject", **made)
    fleet.create_pool(
        slug="big",
        version="v2",
        overload_policy="fallback",
        fallback_pool="small",
        settings={"policy": "least_tokens"},
        **made,
    )
    fleet.set_splits(model="org/chat", weights={"big": 90.0, "small": 10.0}, **WHY)
    fleet.set_shadow(pool="big", shadow_pool="small", ratio=0.2, **WHY)
    fleet.register_replica(pool="big", url="http://10.0.0.1:8000", node="node-1",
                           gpu_indices=[0], **WHY)  # fmt: skip
    fleet.register_replica(pool="small", url="http://10.0.0.2:8000", **WHY)
    scaling.set_policy(pool="big", executor="static", max_replicas=4, warm_spares=1, **WHY)
    tenants.create_tenant(slug="acme", name="Acme", concurrency=5, allowed_models=["org/chat"],
                          **WHY)  # fmt: skip
    tenants.invite_member(tenant="acme", username="anna@acme.example", role="tenant_admin", **WHY)
    key = tenants.issue_key(tenant="acme", name="prod", **WHY)
    reliability.set_slo(pool="big", ttft_p99_s=1.5, owner="ml", review_on=date(2027, 1, 31), **WHY)
    now = timezone.now()
    reliability.open_window(pool="small", starts_at=now + timedelta(hours=1),
                            ends_at=now + timedelta(hours=2), **WHY)  # fmt: skip
    reliability.create_silence(rule="kv-high", pool="big", ends_at=now + timedelta(hours=3), **WHY)
    reliability.create_webhook(name="ops", url="https://hooks.example/T/very-secret", **WHY)
    return key.plaintext


def table_digest() -> str:
    """Give the digest of the table that the fleet amounts to, as soon as its replicas serve."""
    Replica.objects.exclude(state="stopped").update(state="ready", ready_at=None)
    snapshot = routing.fleet_snapshot()
    return compile_table(snapshot, lineage="l", epoch=1, created_at=0.0).table.digest


def sha256(text: str) -> str:
    """Give a key's hash."""
    return hashlib.sha256(text.encode()).hexdigest()
