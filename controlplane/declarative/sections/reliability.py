"""Promises, maintenance, silences, and webhooks without what is secret of them."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, ClassVar

from django.utils import timezone

from controlplane.declarative.section import Entry, Section, Who
from controlplane.domain import slos
from controlplane.domain.errors import Conflict
from controlplane.reliability import services
from controlplane.reliability.models import MaintenanceWindow, Silence, Slo, Webhook
from controlplane.reliability.outbound import origin


class SloEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pool promises where that is not the default."""

    pool: str
    availability_ratio: float = slos.DEFAULTS.availability_ratio
    ttft_p99_s: float = slos.DEFAULTS.ttft_p99_s
    tpot_p99_s: float = slos.DEFAULTS.tpot_p99_s
    error_ratio: float = slos.DEFAULTS.error_ratio
    owner: str = ""
    review_on: date | None = None

    KEY: ClassVar[tuple[str, ...]] = ("pool",)


def _slos() -> list[SloEntry]:
    named = [n for n in SloEntry.__struct_fields__ if n != "pool"]
    return [
        SloEntry(pool=row.pool.slug, **{n: getattr(row, n) for n in named})
        for row in Slo.objects.select_related("pool")
    ]


def _set_slo(entry: SloEntry, who: Who) -> None:
    services.set_slo(**entry.fields("review_on"), review_on=entry.review_on, **who)


SLOS = Section(
    name="slos",
    entry=SloEntry,
    what="SLO",
    read=_slos,
    create=_set_slo,
    update=lambda old, e, who: _set_slo(e, who),
    remove=lambda e, who: services.reset_slo(pool=e.pool, **who),
)


class MaintenanceEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A maintenance window that is open or ahead; those that are over are history."""

    starts_at: datetime
    ends_at: datetime
    reason: str
    pool: str | None = None
    kind: str = "maintenance"

    @property
    def key(self) -> str:
        """Name a window by where and when it is."""
        return f"{self.pool or 'all pools'} {self.starts_at.isoformat()}"


def _windows() -> list[MaintenanceEntry]:
    rows = MaintenanceWindow.objects.select_related("pool").filter(ends_at__gt=timezone.now())
    return [
        MaintenanceEntry(
            pool=row.pool.slug if row.pool else None,
            kind=row.kind,
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            reason=row.reason,
        )
        for row in rows
    ]


def _open_window(entry: MaintenanceEntry, who: Who) -> None:
    services.open_window(
        pool=entry.pool,
        kind=entry.kind,
        starts_at=entry.starts_at,
        ends_at=entry.ends_at,
        actor=who["actor"],
        reason=entry.reason,
    )


def _close_window(entry: MaintenanceEntry, who: Who) -> None:
    row = MaintenanceWindow.objects.get(
        pool__slug=entry.pool, starts_at=entry.starts_at, ends_at=entry.ends_at
    ) if entry.pool else MaintenanceWindow.objects.get(
        pool=None, starts_at=entry.starts_at, ends_at=entry.ends_at
    )  # fmt: skip
    services.close_window(pk=row.pk, **who)


def _refuse(old: Any, entry: Any, who: Who) -> None:
    raise Conflict("It cannot change: end it, and make another.")


MAINTENANCE = Section(
    name="maintenance",
    entry=MaintenanceEntry,
    what="maintenance window",
    read=_windows,
    create=_open_window,
    update=_refuse,
    remove=_close_window,
)


class SilenceEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A silence that holds or is ahead."""

    starts_at: datetime
    ends_at: datetime
    reason: str
    rule: str = ""
    pool: str = ""

    @property
    def key(self) -> str:
        """Name a silence by what it covers and when."""
        matched = " in ".join(part for part in (self.rule, self.pool) if part)
        return f"{matched} {self.starts_at.isoformat()}"


def _silences() -> list[SilenceEntry]:
    names = SilenceEntry.__struct_fields__
    rows = Silence.objects.filter(ends_at__gt=timezone.now())
    return [SilenceEntry(**{n: getattr(row, n) for n in names}) for row in rows]


def _silence(entry: SilenceEntry, who: Who) -> None:
    services.create_silence(
        rule=entry.rule,
        pool=entry.pool,
        starts_at=entry.starts_at,
        ends_at=entry.ends_at,
        actor=who["actor"],
        reason=entry.reason,
    )


def _end_silence(entry: SilenceEntry, who: Who) -> None:
    row = Silence.objects.get(rule=entry.rule, pool=entry.pool, starts_at=entry.starts_at,
                              ends_at=entry.ends_at)  # fmt: skip
    services.end_silence(pk=row.pk, **who)


SILENCES = Section(
    name="silences",
    entry=SilenceEntry,
    what="silence",
    read=_silences,
    create=_silence,
    update=_refuse,
    remove=_end_silence,
)


class WebhookEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook; of its address only the host, since the rest may be a credential."""

    name: str
    host: str
    pool: str = ""
    only_critical: bool = False
    enabled: bool = True


def _webhooks() -> list[WebhookEntry]:
    return [
        WebhookEntry(
            name=row.name,
            host=origin(row.url),
            pool=row.pool,
            only_critical=row.only_critical,
            enabled=row.enabled,
        )
        for row in Webhook.objects.all()
    ]


def _create_webhook(entry: WebhookEntry, who: Who) -> None:
    """Make it without address and secret: switched off, since it would reach nobody."""
    services.create_webhook(url=entry.host, enabled=False, **entry.fields("host", "enabled"), **who)


def _update_webhook(old: WebhookEntry, entry: WebhookEntry, who: Who) -> None:
    if old.host != entry.host:
        raise Conflict(
            f"A file knows only the host of webhook '{entry.name}': change its address by API.",
            field="host",
        )
    services.update_webhook(**entry.fields("host"), **who)


WEBHOOKS = Section(
    name="webhooks",
    entry=WebhookEntry,
    what="webhook",
    read=_webhooks,
    create=_create_webhook,
    update=_update_webhook,
    remove=lambda e, who: services.delete_webhook(name=e.name, **who),
    missing=lambda e: "Made switched off, with a new secret: its address is in no file, set it.",
)
