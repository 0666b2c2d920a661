"""Reads of routing: the publication, who runs what, and the snapshot a table is made of."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.audit.models import AuditEvent, FleetRevision
from controlplane.catalog.models import AdapterVersion, Model
from controlplane.catalog.selectors import live_adapter_versions
from controlplane.domain.fleet_snapshot import (
    AdapterRow,
    FleetSnapshot,
    KeyRow,
    ModelRow,
    PoolRow,
    ReplicaRow,
    ShadowRow,
    SplitRow,
)
from controlplane.domain.replica_states import State
from controlplane.fleet.models import Agent, Pool, Replica, Shadow, TrafficSplit
from controlplane.fleet.selectors import adapters_wanted
from controlplane.routing.models import Publication, RoutingEpoch
from controlplane.telemetry.figures import Mark
from controlplane.tenants.models import ApiKey, Tenant
from controlplane.tenants.selectors import tenant_row


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """How many registered agents run a table that covers a revision: "2 of 2"."""

    n: int
    m: int
    agents_behind: tuple[str, ...]  # node names
    silent: tuple[str, ...] = ()  # of those behind, the ones we do not hear

    @property
    def complete(self) -> bool:
        """Say whether every agent obeys it."""
        return self.n == self.m


def adopted_at() -> datetime | None:
    """Give when publishing last went on after a restored backup; None: it never did."""
    rows = AuditEvent.objects.filter(verb="routing.adopt").order_by("-at")
    return rows.values_list("at", flat=True).first()


def publication() -> Publication:
    """Give the one row that says which lineage and epoch this database is at.

    The lineage is drawn at first use and belongs to the database: a copy of it keeps it.
    """
    row = Publication.objects.filter(pk=1).first()
    if row is None:
        row, _ = Publication.objects.get_or_create(pk=1, defaults={"lineage": str(uuid.uuid4())})
    return row


def current_epoch() -> int:
    """Give the newest published epoch; 0 before the first."""
    return publication().epoch


def newest_table(of: Publication) -> RoutingEpoch | None:
    """Give the table of the publication's epoch; None before the first, or just after `adopt`.

    Its bytes are read only when asked for: most callers want number and digest.
    """
    return RoutingEpoch.objects.defer("table").filter(epoch=of.epoch).first()


def covered_revision(epoch: int, digest: str) -> int:
    """Give the fleet revision that our table of this number and content covers; 0 if it is none."""
    rows = RoutingEpoch.objects.filter(epoch=epoch, digest=digest)
    return rows.values_list("fleet_revision", flat=True).first() or 0


def fleet_revision() -> int:
    """Give the number of the newest change to the fleet."""
    return FleetRevision.objects.filter(pk=1).values_list("revision", flat=True).first() or 0


def is_live(agent: Agent, *, now: datetime) -> bool:
    """Say whether we heard an agent lately, by our own clock alone."""
    limit = timedelta(seconds=settings.AGENT_SILENT_AFTER_S)
    return agent.last_seen_at is not None and now - agent.last_seen_at <= limit


def live_agents(*, now: datetime) -> QuerySet[Agent]:
    """Give the agents heard lately, with their nodes."""
    since = now - timedelta(seconds=settings.AGENT_SILENT_AFTER_S)
    return Agent.objects.select_related("node").filter(last_seen_at__gte=since)


def observed(revision: int) -> Observed:
    """Say which agents run a table that covers `revision`."""
    now = timezone.now()
    agents = list(Agent.objects.select_related("node"))
    lineage = publication().lineage
    behind = [a for a in agents if a.reported_lineage != lineage or a.applied_revision < revision]
    return Observed(
        n=len(agents) - len(behind),
        m=len(agents),
        agents_behind=tuple(a.node.name for a in behind),
        silent=tuple(a.node.name for a in behind if not is_live(a, now=now)),
    )


def agents_behind() -> list[Agent]:
    """Give the agents that do not run the newest table, silent ones included."""
    current = publication()
    newest = newest_table(current)
    if newest is None:
        return []
    up_to_date = Q(
        reported_lineage=current.lineage, applied_epoch=newest.epoch, applied_digest=newest.digest
    )
    return list(Agent.objects.select_related("node").exclude(up_to_date))


def delivery_lag(
    current: Publication | None = None, agents: Sequence[Agent] | None = None
) -> dict[str, float | None]:
    """Give for each agent, by public id, the seconds it has been behind; None when it is not.

    Args:
        current: the publication, and `agents` all agents, where the caller has read them already.
    """
    now = timezone.now()
    current = current or publication()
    newest = newest_table(current)
    published = dict(RoutingEpoch.objects.order_by("epoch").values_list("epoch", "created_at"))
    lags: dict[str, float | None] = {}
    for agent in Agent.objects.all() if agents is None else agents:
        missing = [at for epoch, at in published.items() if epoch > agent.applied_epoch]
        since = missing[0] if missing else None
        is_behind = newest is not None and not _runs(agent, current, newest)
        lags[agent.public_id] = (now - since).total_seconds() if is_behind and since else None
    return lags


def _runs(agent: Agent, current: Publication, newest: RoutingEpoch) -> bool:
    told = (agent.reported_lineage, agent.applied_epoch, agent.applied_digest)
    return told == (current.lineage, newest.epoch, newest.digest)


@contextmanager
def one_moment() -> Iterator[None]:
    """Let everything read inside come from one consistent state of the database."""
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        if outermost and connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def fleet_snapshot() -> FleetSnapshot:
    """Read what a table is made of; call it inside `one_moment`."""
    return FleetSnapshot(
        revision=fleet_revision(),
        models=tuple(
            ModelRow(**row)
            for row in Model.objects.values(
                "name", "aliases", "bytes_per_token", "complexity", "cascade"
            )
        ),
        pools=tuple(_pool_row(pool) for pool in _pools()),
        replicas=_replica_rows(),
        splits=tuple(
            SplitRow(model=model, pool=pool, weight=weight)
            for model, pool, weight in TrafficSplit.objects.values_list(
                "model__name", "pool__slug", "weight"
            )
        ),
        tenants=tuple(tenant_row(tenant) for tenant in Tenant.objects.all()),
        keys=tuple(_key_row(key) for key in _keys()),
        adapters=tuple(_adapter_row(version) for version in live_adapter_versions()),
    )


def _replica_rows() -> tuple[ReplicaRow, ...]:
    wanted = adapters_wanted()
    return tuple(_replica_row(r, wanted.get(r.public_id, ())) for r in _replicas())


def _adapter_row(version: AdapterVersion) -> AdapterRow:
    adapter = version.adapter
    return AdapterRow(
        name=adapter.name,
        tenant=adapter.tenant.slug,
        shared_with=tuple(tenant.slug for tenant in adapter.shared_with.all()),
        model=adapter.model.name,
        digest=version.digest,
        files=version.files,
        served_name=version.served_name,
        size_bytes=version.size_bytes,
        rank=version.rank,
        pinned=adapter.pinned,
        active=version.state == AdapterVersion.State.ACTIVE,
    )


def _pools() -> QuerySet[Pool]:
    return Pool.objects.select_related(
        "model_version__model", "fallback_pool", "shadow__shadow_pool"
    )


def _replicas() -> QuerySet[Replica]:
    gone = [State.PENDING, State.SLEEPING, State.STOPPED, State.FAILED]
    return Replica.objects.select_related("pool", "node").exclude(state__in=gone)


def _keys() -> QuerySet[ApiKey]:
    return ApiKey.objects.select_related("tenant").filter(revoked_at__isnull=True)


def _pool_row(pool: Pool) -> PoolRow:
    return PoolRow(
        slug=pool.slug,
        model=pool.model_version.model.name,
        version=pool.model_version.name,
        overload=pool.overload_policy,
        fallback_pool=pool.fallback_pool.slug if pool.fallback_pool else "",
        overrides=pool.settings,
        context_tokens=pool.model_version.context_tokens,
        start_wait_s=pool.start_wait_s,
        may_grow_to=pool.may_grow_to,
        shadow=_shadow_row(pool),
    )


def _shadow_row(pool: Pool) -> ShadowRow | None:
    row: Shadow | None = getattr(pool, "shadow", None)
    if row is None:
        return None
    return ShadowRow(pool=row.shadow_pool.slug, ratio=row.ratio, at_once=row.at_once, keep=row.keep)


def _replica_row(replica: Replica, adapters: tuple[str, ...]) -> ReplicaRow:
    return ReplicaRow(
        public_id=replica.public_id,
        pool=replica.pool.slug,
        url=replica.url,
        state=State(replica.state),
        engine=replica.engine,
        served_model=replica.served_model,
        credential=replica.credential,
        node=replica.node.name if replica.node else "",
        zone=replica.node.zone if replica.node else "",
        weight=replica.weight,
        ready_at=replica.ready_at.timestamp() if replica.ready_at else 0.0,
        ejected_by_operator=replica.ejected_by_operator,
        gpus=tuple(sorted(replica.gpu_indices)),
        adapters=adapters,
    )


def _key_row(key: ApiKey) -> KeyRow:
    return KeyRow(
        public_id=key.public_id,
        sha256=key.sha256,
        tenant=key.tenant.slug,
        expires_at=key.expires_at.timestamp() if key.expires_at else None,
    )


def epoch_marks(since: datetime) -> list[Mark]:
    """Give the epochs published from a moment on as marks for charts; the newest 200."""
    rows = RoutingEpoch.objects.filter(created_at__gte=since).values_list(
        "created_at", "epoch", "reason"
    )[:200]
    return [
        Mark(at=at, text=f"epoch {epoch}: {reason}" if reason else f"epoch {epoch}")
        for at, epoch, reason in rows
    ]
