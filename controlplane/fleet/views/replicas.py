"""A replica's page, and what an operator does with one: drain, eject, restore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from controlplane.audit.selectors import fleet_revision
from controlplane.audit.services import Actor
from controlplane.console import actions, preferences
from controlplane.console.mixins import Action, Page, back_to, requested
from controlplane.fleet import rows, selectors, services
from controlplane.fleet.models import Replica
from controlplane.fleet.views import charts
from controlplane.telemetry import live


class ReplicaPage(Page):
    """One replica: state with its history, figures, charts, GPUs."""

    template_name = "fleet/replica.html"
    fragment_name = "fleet/_replica.html"
    nav_name = "pools"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the replica, its moves and, for a whole page, its charts."""
        replica = selectors.replica(kwargs["replica_id"])
        reports = rows.reports()
        context = {
            "title": replica.public_id,
            "api_path": f"/api/v1/replicas/{replica.public_id}/",
            "replica": replica,
            "row": rows.replica_row(replica, reports),
            "moves": replica.moves.all()[:30],
            "placements": selectors.placements().filter(replica=replica).order_by("version_id"),
            "reports": reports,
            "cells": rows.gpu_cells([replica], reports),
            "engine": live.engine(reports, replica.public_id),
            "page_has_window": True,
        }
        if not getattr(self.request, "htmx", False):
            chosen = preferences.read(self.request).window
            context["charts"] = charts.replica_charts(replica.pool.slug, replica.public_id, chosen)
        return super().get_context_data(**kwargs) | context


class ReplicaAction(Action):
    """One move of one replica, confirmed by a second click."""

    move: ClassVar[Callable[..., Replica]]
    done: ClassVar[str] = ""

    def post(self, request: HttpRequest, replica_id: str) -> HttpResponse:
        """Make the move and follow it to the agents."""
        replica = type(self).move(
            replica_id=replica_id,
            actor=Actor(request.user.get_username()),
            reason=actions.reason(request),
            expected_version=actions.expected_version(request),
        )
        requested(request, f"{self.done} of {replica_id} requested.", revision=fleet_revision())
        page = reverse("replica", args=[replica.public_id])
        return back_to(request, actions.return_address(request, page))


class DrainReplica(ReplicaAction):
    """Stop new work on a replica."""

    move = staticmethod(services.drain_replica)
    done = "Drain"


class EjectReplica(ReplicaAction):
    """Take a replica out until somebody restores it."""

    move = staticmethod(services.eject_replica)
    done = "Ejection"


class RestoreReplica(ReplicaAction):
    """Bring a replica back."""

    move = staticmethod(services.restore_replica)
    done = "Return"
