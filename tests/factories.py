"""Django rows with defaults: a test names only what it is about."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

from django.utils import timezone

from controlplane.audit.services import Actor
from controlplane.catalog.models import Model, ModelVersion
from controlplane.domain.replica_states import State
from controlplane.fleet.models import Agent, Node, Pool, Replica, TrafficSplit
from controlplane.tenants.models import ApiKey, Tenant

ACTOR = Actor("tests", "command")
WHY: dict[str, Any] = {"actor": ACTOR, "reason": "a test"}
_numbers = itertools.count(1)


def make_version(model: str = "m", version: str = "v1", **given: Any) -> ModelVersion:
    """A version of a model, which is made if it is not there."""
    owner, _ = Model.objects.get_or_create(name=model)
    row, _ = ModelVersion.objects.get_or_create(model=owner, name=version, defaults=given)
    return row


def make_pool(slug: str = "chat", *, model: str = "m", weight: float = 100.0, **given: Any) -> Pool:
    """A pool of model `m` with a share of its sessions."""
    version = make_version(model)
    pool = Pool.objects.create(
        slug=slug, model_version=version, **({"overload_policy": "queue"} | given)
    )
    TrafficSplit.objects.create(model=version.model, pool=pool, weight=weight)
    return pool


def make_node(name: str = "", **given: Any) -> Node:
    """A machine."""
    return Node.objects.create(name=name or f"node-{next(_numbers)}", **given)


def make_replica(pool: Pool, *, state: State = State.READY, **given: Any) -> Replica:
    """A replica of `pool`."""
    number = next(_numbers)
    defaults: dict[str, Any] = {
        "public_id": f"rpl-{number}",
        "url": f"http://10.0.0.1:{10_000 + number}",
        "state_since": timezone.now(),
    }
    return Replica.objects.create(pool=pool, state=state, **(defaults | given))


def make_agent(name: str = "", *, live: bool = True, **given: Any) -> Agent:
    """A registered agent on a node of its own."""
    number = next(_numbers)
    defaults: dict[str, Any] = {
        "public_id": f"agt-{number}",
        "token_sha256": hashlib.sha256(f"token-{number}".encode()).hexdigest(),
        "traffic_url": "http://127.0.0.1:1",
        "admin_url": "http://127.0.0.1:1",
        "last_seen_at": timezone.now() if live else None,
    }
    return Agent.objects.create(node=make_node(name), **(defaults | given))


def make_tenant(slug: str = "acme", **given: Any) -> Tenant:
    """A tenant."""
    return Tenant.objects.create(slug=slug, **({"name": slug.title()} | given))


def make_key(tenant: Tenant, **given: Any) -> ApiKey:
    """A key of `tenant`."""
    number = next(_numbers)
    defaults: dict[str, Any] = {
        "public_id": f"key-{number}",
        "name": f"key-{number}",
        "prefix": "sbx-",
        "sha256": hashlib.sha256(f"key-{number}".encode()).hexdigest(),
        "created_by": "tests",
    }
    return ApiKey.objects.create(tenant=tenant, **(defaults | given))
