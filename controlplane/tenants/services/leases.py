"""Lease calls of agents: one row a tenant, decided by `domain.quotas`. Redis plays no part."""

from __future__ import annotations

import time

import msgspec
import structlog
from django.db import transaction

from controlplane.domain import quotas
from controlplane.domain.quotas import Caller
from controlplane.domain.tables import tenant_limits
from controlplane.tenants import selectors
from controlplane.tenants.models import LimitLedger, Tenant
from routing_agent import wire

log = structlog.get_logger(__name__)


@transaction.atomic
def lease_limits(*, agent: str, request: wire.LeaseRequest) -> wire.LeaseReply:
    """Answer a lease call; all its grants are booked in one transaction, or none.

    Rows are held in the order of their tenants, so that calls of several agents never wait for
    each other in a circle. A tenant that is gone gets nothing.
    """
    asks = {ask.tenant: ask for ask in request.asks}
    tenants = list(Tenant.objects.filter(slug__in=asks).order_by("pk"))
    held = _held(tenants)
    caller = Caller(agent=agent, start=request.start, serial=request.serial)
    now = time.time()  # after waiting for the rows: answers go out in the order of their times
    grants = []
    for tenant in tenants:
        row = held[tenant.pk]
        limits = tenant_limits(selectors.tenant_row(tenant))
        told = quotas.lease(
            selectors.ledger(row), limits, asks[tenant.slug], caller=caller, now=now
        )
        row.state = msgspec.to_builtins(told.ledger)
        row.save(update_fields=["state", "changed_at"])
        grants.append(told.grant)
    return wire.LeaseReply(grants=tuple(grants))


def _held(tenants: list[Tenant]) -> dict[int, LimitLedger]:
    """Hold the ledgers of tenants until the transaction ends, making those that are missing."""
    keys = [tenant.pk for tenant in tenants]
    known = set(LimitLedger.objects.filter(pk__in=keys).values_list("pk", flat=True))
    if missing := [LimitLedger(pk=key) for key in keys if key not in known]:
        LimitLedger.objects.bulk_create(missing, ignore_conflicts=True)
    rows = LimitLedger.objects.select_for_update().filter(pk__in=keys).order_by("pk")
    return {row.pk: row for row in rows}
