"""Routing: what the agents run, deliveries, explanations; following a change to the agents."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.mixins import (
    Action,
    Page,
    RoleRequired,
    back_to,
    in_dialog,
    includes,
    requested,
)
from controlplane.domain.errors import NotFound
from controlplane.fleet import rows as fleet_rows
from controlplane.fleet import selectors as fleet
from controlplane.routing import explain, selectors, services
from controlplane.routing.forms import ExplainForm
from controlplane.routing.models import Delivery, RoutingEpoch
from routing_agent import wire

EPOCHS_SHOWN = 15
CHANGES_LOOKED_AT = 300  # by number: the audit log may be long
FOLLOW_S = 60.0  # a notice that saw no agent come round in this time says so and stops asking


class RoutingPage(Page):
    """The newest epoch, who runs it, and the way there."""

    template_name = "routing/routing.html"
    fragment_name = "routing/_routing.html"
    nav_name = "routing"
    title = "Routing"
    api_path = "/api/v1/routing-tables/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the publication, the agents with their lag, and recent epochs."""
        publication = selectors.publication()
        revision = selectors.fleet_revision()
        lags = selectors.delivery_lag()
        epochs = list(RoutingEpoch.objects.defer("table")[:EPOCHS_SHOWN])
        newest = epochs[0] if epochs else None
        return super().get_context_data(
            publication=publication,
            revision=revision,
            unpublished=max(0, revision - publication.published_revision),
            newest=newest,
            agents=agent_lines(publication.epoch, lags),
            epochs=epoch_lines(epochs),
            form=ExplainForm(self.request.GET or None),
            **kwargs,
        )


def agent_lines(epoch: int, lags: dict[str, float | None]) -> list[dict[str, Any]]:
    """Give each agent with its epoch, lag, and its delivery of the newest epoch."""
    deliveries = {
        d.agent_id: d for d in Delivery.objects.filter(epoch__epoch=epoch).select_related("epoch")
    }
    lines = []
    for agent in fleet.agents():
        behind = max(0, epoch - agent.applied_epoch)
        status, reason = fleet_rows.agent_status(agent, agent.last_seen_at, epoch)
        lines.append(
            {
                "agent": agent,
                "status": status,
                "reason": reason,
                "behind_by": behind,
                "lag_s": lags.get(agent.public_id),
                "delivery": deliveries.get(agent.pk),
            }
        )
    return sorted(lines, key=lambda line: (line["status"] == "current", line["agent"].node.name))


def epoch_lines(epochs: list[RoutingEpoch]) -> list[dict[str, Any]]:
    """Give epochs with their deliveries counted, and how long the slowest took."""
    found = Delivery.objects.filter(epoch__in=epochs)
    by_epoch: dict[int, list[Delivery]] = {}
    for delivery in found:
        by_epoch.setdefault(delivery.epoch_id, []).append(delivery)
    newest = selectors.publication().epoch
    why = causes(epochs)
    return [
        _epoch_line(epoch, by_epoch.get(epoch.pk, []), newest) | {"cause": why.get(epoch.epoch, "")}
        for epoch in epochs
    ]


def causes(epochs: list[RoutingEpoch]) -> dict[int, str]:
    """Name the changes that each of some epochs, newest first, brought to the agents.

    Only the newest changes are looked at: of an older epoch nothing is said.
    """
    raised = AuditEvent.objects.filter(fleet_revision__isnull=False).order_by("-id")
    events = list(raised.values_list("fleet_revision", "verb", "target")[:CHANGES_LOOKED_AT])
    found = {}
    for epoch, before in pairwise(epochs):
        covered = range(before.fleet_revision + 1, epoch.fleet_revision + 1)
        changes = [f"{verb} {target}" for at, verb, target in events if at in covered]
        if changes:
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            found[epoch.epoch] = changes[0] + more
    return found


def _epoch_line(epoch: RoutingEpoch, deliveries: list[Delivery], newest: int) -> dict[str, Any]:
    applied = [d for d in deliveries if d.outcome == Delivery.Outcome.APPLIED]
    times = [
        max(0.0, (d.finished_at - epoch.created_at).total_seconds())
        for d in applied
        if d.finished_at
    ]
    return {
        "epoch": epoch,
        "applied": len(applied),
        "total": len(deliveries),
        "was_replaced": len(applied) < len(deliveries) and epoch.epoch < newest,
        "slowest_s": max(times, default=None),
        "problems": [d for d in deliveries if d.outcome in {"refused", "invalid", "unreachable"}],
    }


class EpochPage(Page):
    """One published table, credentials redacted, and what changed from the one before."""

    template_name = "routing/epoch.html"
    nav_name = "routing"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Decode the table and compare it with its predecessor."""
        row = RoutingEpoch.objects.filter(epoch=kwargs["epoch"]).first()
        if row is None:
            raise NotFound(
                f"Epoch {kwargs['epoch']} is not kept: it never was, or retention removed it."
            )
        before = RoutingEpoch.objects.filter(epoch__lt=row.epoch).first()
        return super().get_context_data(**kwargs) | {
            "title": f"Epoch {row.epoch}",
            "api_path": f"/api/v1/routing-tables/{row.epoch}/",
            "row": row,
            "before": before,
            "changes": table_changes(table_of(before) if before else None, table_of(row)),
            "table": msgspec.json.format(msgspec.json.encode(table_of(row)), indent=1).decode(),
            "deliveries": row.deliveries.select_related("agent__node"),
        }


def table_of(row: RoutingEpoch) -> wire.RoutingTable:
    """Decode a published table, redacted."""
    return wire.redacted(msgspec.json.decode(bytes(row.table), type=wire.RoutingTable))


def table_changes(before: wire.RoutingTable | None, after: wire.RoutingTable) -> list[str]:
    """Say in words what differs between two tables; empty when only the number does."""
    if before is None:
        return ["The first table that is kept."]
    found: list[str] = []
    for noun, old, new in (
        ("pool", {p.name: p for p in before.pools}, {p.name: p for p in after.pools}),
        ("model", {m.model: m for m in before.models}, {m.model: m for m in after.models}),
        ("tenant", {t.name: t for t in before.tenants}, {t.name: t for t in after.tenants}),
        ("key", {k.id: k for k in before.api_keys}, {k.id: k for k in after.api_keys}),
        ("replica", _endpoints(before), _endpoints(after)),
    ):
        found += _named_changes(noun, old, new)
    return found


def _endpoints(table: wire.RoutingTable) -> dict[str, Any]:
    return {e.replica: e for pool in table.pools for e in pool.endpoints}


def _named_changes(noun: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    lines = [f"{noun} {name} added" for name in new.keys() - old.keys()]
    lines += [f"{noun} {name} removed" for name in old.keys() - new.keys()]
    for name in old.keys() & new.keys():
        fields = [
            f"{field} {_plain(getattr(old[name], field))} → {_plain(getattr(new[name], field))}"
            for field in old[name].__struct_fields__
            if field != "endpoints" and getattr(old[name], field) != getattr(new[name], field)
        ]
        if fields:
            lines.append(f"{noun} {name}: {'; '.join(fields)}")
    return sorted(lines)


FEW_FIELDS = 3


def _plain(value: Any) -> str:
    if isinstance(value, msgspec.Struct):
        known = msgspec.structs.fields(value)
        told = [(field, getattr(value, field.name)) for field in known]
        if len(known) > FEW_FIELDS:  # of settings only what is not the default
            told = [(field, one) for field, one in told if one != field.default]
        return ", ".join(f"{field.name} {_plain(one)}" for field, one in told) or "defaults"
    if isinstance(value, (tuple, list)):
        return "; ".join(map(_plain, value)) or "nothing"
    return "nothing" if value is None else str(value)


class ExplainView(RoleRequired):
    """Where would this request go, and why: asked of a running agent."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Show the form, with the answer when something was asked."""
        form = ExplainForm(request.GET or None)
        found = explain.explain(form.question()) if form.is_bound and form.is_valid() else None
        context = {
            "form": form,
            "found": found,
            "title": "Explain",
            "nav_name": "routing",
            "api_path": "/api/v1/explain/",
        }
        is_part = bool(getattr(request, "htmx", False))
        return render(
            request, "routing/_answer.html" if is_part else "routing/explain.html", context
        )


class Republish(RoleRequired):
    """Publish the fleet as it is under a new epoch: asks first, with a reason."""

    required_role: ClassVar[str] = "operator"

    def get(self, request: HttpRequest) -> HttpResponse:
        """State the effect and ask for the reason."""
        context = {
            "title": "Republish the routing table",
            "nav_name": "routing",
            "publication": selectors.publication(),
            "agents": fleet.agents().count(),
            "layout": "dialog.html" if in_dialog(request) else "base.html",
        }
        return render(request, "routing/republish.html", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Publish, and follow the epoch to the agents."""
        services.republish(
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request, required=True),
        )
        revision = selectors.publication().published_revision
        requested(request, "The table was published anew.", revision=revision)
        return back_to(request, reverse("routing"))


class RetryDelivery(Action):
    """Push the newest table to one agent again."""

    def post(self, request: HttpRequest, agent: str) -> HttpResponse:
        """Ask for the delivery and follow it."""
        services.retry_delivery(
            agent=agent,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request),
        )
        revision = selectors.publication().published_revision
        requested(request, "Another delivery was asked for.", revision=revision)
        return back_to(request, actions.return_address(request, reverse("routing")))


def since(request: HttpRequest) -> float:
    """Give when a notice began to follow its change; now, for one that just began."""
    try:
        return min(float(request.GET["since"]), time.time())
    except (KeyError, ValueError):
        return time.time()


class ObservedView(RoleRequired):
    """How far a change has come: requested, published, observed by n of m agents.

    Tenants' members follow their own changes here; agents are named to staff only.
    """

    def admit(self, request: HttpRequest, **kwargs: Any) -> None:
        """Let everybody in who is signed in: numbers of agents are no secret."""

    def get(self, request: HttpRequest, revision: int) -> HttpResponse:
        """Answer with the notice's next state; a final one asks no more."""
        started = since(request)
        publication = selectors.publication()
        found = selectors.observed(revision)
        is_late = time.time() - started > FOLLOW_S
        context = {
            "revision": revision,
            "since": f"{started:.1f}",
            "observed": found,
            "published": publication.published_revision >= revision,
            "publication": publication,
            "final": (found.complete and found.m > 0) or is_late or bool(publication.halted_reason),
            "is_late": is_late,
            "is_staff": includes(str(request.role), "viewer"),  # type: ignore[attr-defined]
            "now": timezone.now(),
            "silent_after_s": settings.AGENT_SILENT_AFTER_S,
        }
        return render(request, "routing/_observed.html", context)
