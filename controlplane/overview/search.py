"""One search box over everything that has a name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from django.db.models import Q
from django.urls import reverse

from controlplane.catalog.models import Adapter, ModelVersion
from controlplane.fleet.models import Node, Pool, Replica
from controlplane.rollouts.models import Rollout
from controlplane.routing.models import RoutingEpoch
from controlplane.tenants.models import Tenant
from controlplane.usage import selectors as usage

EACH = 6
_OWN_ID = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing found and where it is."""

    kind: str
    name: str
    detail: str
    url: str


def search(text: str) -> list[Hit]:
    """Find what has this in its name: six of each kind."""
    text = text.replace("\x00", "").strip()  # no name holds a NUL, and PostgreSQL refuses to look
    if not text:
        return []
    return [
        *_pools(text),
        *_replicas(text),
        *_nodes(text),
        *_versions(text),
        *_adapters(text),
        *_tenants(text),
        *_epochs(text),
        *_rollouts(text),
        *_requests(text),
    ]


def _pools(text: str) -> list[Hit]:
    found = Pool.objects.filter(
        Q(slug__icontains=text) | Q(model_version__model__name__icontains=text)
    ).select_related("model_version__model")
    return [_hit("pool", p.slug, p.model_version.model.name, p.slug) for p in found[:EACH]]


def _replicas(text: str) -> list[Hit]:
    found = Replica.objects.filter(
        Q(public_id__icontains=text) | Q(url__icontains=text)
    ).select_related("pool")
    return [
        _hit("replica", r.public_id, f"{r.pool.slug}, {r.state}", r.public_id) for r in found[:EACH]
    ]


def _nodes(text: str) -> list[Hit]:
    found = Node.objects.filter(Q(name__icontains=text) | Q(hostname__icontains=text))
    return [_hit("node", n.name, n.zone, n.name) for n in found[:EACH]]


def _versions(text: str) -> list[Hit]:
    found = ModelVersion.objects.filter(
        Q(name__icontains=text) | Q(model__name__icontains=text)
    ).select_related("model")
    return [_hit("version", f"{v.model.name} {v.name}", v.engine, v.pk) for v in found[:EACH]]


def _adapters(text: str) -> list[Hit]:
    named = Q(name__icontains=text) | Q(versions__digest__startswith=text.lower())
    found = Adapter.objects.filter(named).select_related("tenant", "model").distinct()
    return [
        _hit("adapter", f"{a.tenant.slug}/{a.name}", a.model.name, a.public_id)
        for a in found[:EACH]
    ]


def _tenants(text: str) -> list[Hit]:
    found = Tenant.objects.filter(Q(slug__icontains=text) | Q(name__icontains=text))
    return [_hit("tenant", t.slug, t.name, t.slug) for t in found[:EACH]]


def _epochs(text: str) -> list[Hit]:
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        return []
    found = RoutingEpoch.objects.filter(epoch=int(text)).defer("table")
    return [_hit("epoch", str(e.epoch), f"{e.created_at:%Y-%m-%d %H:%M}", e.epoch) for e in found]


def _rollouts(text: str) -> list[Hit]:
    named = Q(stable_pool__icontains=text) | Q(canary_pool__icontains=text)
    if text.isascii() and text.isdigit() and len(text) < 10:
        named |= Q(pk=int(text))
    found = Rollout.objects.filter(named | Q(model__icontains=text))
    return [
        _hit("rollout", f"{r.stable_pool} → {r.canary_pool}", f"{r.model}, {r.phase}", r.pk)
        for r in found[:EACH]
    ]


def _requests(text: str) -> list[Hit]:
    """Find kept requests; an id as our agents give it is found to be not kept, too."""
    found = usage.found_by(text, EACH)
    if not found and _OWN_ID.fullmatch(text):
        return [_hit("request", text, "not sampled: no record is kept", text)]
    return [_hit("request", r.request_id, f"{r.status}, {r.pool}", r.request_id) for r in found]


def _hit(kind: str, name: str, detail: str, key: object) -> Hit:
    """Give a hit whose page is named after its kind."""
    return Hit(kind, name, detail, reverse(kind, args=[key]))
