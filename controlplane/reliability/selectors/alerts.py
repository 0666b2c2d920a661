"""Reads of alerts, the rules' last look, silences, webhooks and their messages."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, CharField, F, IntegerField, QuerySet, Value, When
from django.utils import timezone

from controlplane.domain.alert_rules import BY_NAME, GRAVER, RULES, Rule, Severity
from controlplane.domain.alerts import State, silence_of
from controlplane.domain.attention import Trouble
from controlplane.domain.errors import NotFound
from controlplane.reliability.models import (
    Alert,
    AlertRun,
    Silence,
    Webhook,
    WebhookDelivery,
)

LATE: Final = timedelta(seconds=40)  # four looks missed: what is shown is of the past


def alerts() -> QuerySet[Alert]:
    """Give all alerts: firing ones first, critical before warning, the oldest first.

    `title` is the rule in words, so that lists can be sorted by what they show.
    """
    rank = Case(
        When(state=State.FIRING, severity=Severity.CRITICAL, then=Value(0)),
        When(state=State.FIRING, then=Value(1)),
        When(state=State.PENDING, then=Value(2)),
        default=Value(3),
        output_field=IntegerField(),
    )
    title = Case(
        *(When(rule=rule.name, then=Value(rule.title)) for rule in RULES),
        default=F("rule"),
        output_field=CharField(),
    )
    return Alert.objects.annotate(rank=rank, title=title).order_by(
        "rank", "-resolved_at", "since", "id"
    )


def alert(pk: int) -> Alert:
    """Give one alert, or raise NotFound."""
    found = Alert.objects.filter(pk=pk).first()
    if found is None:
        raise NotFound(f"There is no alert {pk}: resolved ones are kept for 30 days.")
    return found


def silences() -> QuerySet[Silence]:
    """Give all silences, those that last longest first."""
    return Silence.objects.all()


def active_silences() -> list[Silence]:
    """Give the silences that hold now."""
    now = timezone.now()
    return list(Silence.objects.filter(starts_at__lte=now, ends_at__gt=now))


def silence_over(alert: Alert, context: Any) -> Silence | None:
    """Give the silence over an alert; silences are read once for a list, kept in its context."""
    if "silences" not in context:
        context["silences"] = active_silences()
    return silence_of(alert, context["silences"], now=timezone.now())


def webhooks() -> QuerySet[Webhook]:
    """Give all webhooks."""
    return Webhook.objects.all()


def deliveries() -> QuerySet[WebhookDelivery]:
    """Give messages to webhooks, newest first."""
    return WebhookDelivery.objects.select_related("webhook", "alert")


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """One rule and how its subjects stood at the last look; None: it was never looked."""

    rule: Rule
    ok: int | None = None
    pending: int | None = None
    firing: int | None = None
    no_data: int | None = None
    missing: dict[str, int] = field(default_factory=dict)


def rule_lines() -> tuple[datetime | None, list[RuleLine]]:
    """Give when rules were last judged, and how each stood."""
    run = AlertRun.objects.first()
    told: dict[str, Any] = run.rules if run else {}
    return (run.at if run else None), [
        RuleLine(rule=rule, **told.get(rule.name, {})) for rule in RULES
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """What fires now: told to people, and what silences keep from them."""

    loud: list[Alert]
    silenced: list[Alert]


def firing() -> Firing:
    """Give the alerts that fire now."""
    found = list(alerts().filter(state=State.FIRING))
    active = active_silences() if found else []
    now = timezone.now()
    quiet = [a for a in found if silence_of(a, active, now=now) is not None]
    return Firing(loud=[a for a in found if a not in quiet], silenced=quiet)


def own_lines(found: Iterable[Alert], told: Container[str] = ()) -> list[Alert]:
    """Leave out what the overview says otherwise.

    That is what it has words of its own for (replicas, agents, loops that are out), and milder
    alerts of a subject while the graver of the same kind fires. A pool that only loads has no
    words of its own there: it gets a line once its alert fires.

    Args:
        told: the pools that have a line.
    """
    lines = [
        a
        for a in found
        if a.rule not in BY_NAME
        or BY_NAME[a.rule].own_line
        or (a.rule == "pool-down" and a.subject not in told)
    ]
    fires = {(a.rule, a.subject) for a in lines}
    return [a for a in lines if (GRAVER.get(a.rule, ""), a.subject) not in fires]


def troubles() -> dict[str, list[Trouble]]:
    """Give what is wrong with pools by the alerts that fire and no silence keeps quiet.

    What costs money only, idle GPUs, is no trouble of a pool: whoever asks it is served well.
    """
    found: dict[str, list[Trouble]] = {}
    for row in own_lines(firing().loud):
        if row.pool and (row.rule not in BY_NAME or BY_NAME[row.rule].promise):
            found.setdefault(row.pool, []).append(_trouble(row))
    return found


def _trouble(row: Alert) -> Trouble:
    rule = BY_NAME.get(row.rule)
    is_told_already = row.rule == "pool-down"  # by the pool's replicas
    return Trouble(
        text="" if is_told_already else f"{rule.title if rule else row.rule}.",
        is_critical=row.severity == Severity.CRITICAL,
    )
