"""Charts of what is larger than a pool: the fleet, a model version, a tenant."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from django.urls import reverse

from controlplane.catalog.models import ModelVersion
from controlplane.console import preferences
from controlplane.console.charts import Chart
from controlplane.console.mixins import Page
from controlplane.domain.errors import NotFound
from controlplane.fleet.models import Replica
from controlplane.fleet.views.charts import POOL_CHARTS, TARGETS, ChartView, changes, embedded
from controlplane.telemetry import source
from controlplane.telemetry.figures import Mark
from controlplane.telemetry.models import RollUpState
from controlplane.telemetry.payloads import payload
from controlplane.telemetry.rolling import FLEET, TENANT, VERSION, version_subject
from controlplane.telemetry.snapshots import NoData, SeriesSet, Window, window
from controlplane.tenants import selectors as tenants
from controlplane.tenants.views.area import AreaRequired
from controlplane.tenants.views.pages import TENANT_CHARTS

# As of a pool, what was asked of it first.
VERSION_CHARTS = {"requests": POOL_CHARTS["requests"]} | POOL_CHARTS
BY_POOL = "pools"
FLEET_CHARTS = {
    "requests": VERSION_CHARTS["requests"],
    BY_POOL: "Requests by pool",
} | VERSION_CHARTS


def fleet_data(chart: str, wanted: Window) -> SeriesSet | NoData:
    """Give one chart of the fleet."""
    if chart == BY_POOL:
        return source.pools_chart(wanted)
    return source.level_chart(FLEET, "", chart, wanted)


def fleet_payload(chart: str, wanted: Window, marked: list[Mark]) -> dict[str, Any]:
    """Build one chart of the fleet, with the table's epochs."""
    return payload(
        FLEET_CHARTS[chart],
        fleet_data(chart, wanted),
        revision=f"fleet/{chart}/{wanted.steps}",
        targets=TARGETS.get(chart, ()),
        marks=marked,
    )


def version_payload(
    version: ModelVersion, chart: str, wanted: Window, marked: list[Mark]
) -> dict[str, Any]:
    """Build one chart of a version, over the pools that serve it."""
    subject = version_subject(version.model.name, version.name)
    return payload(
        VERSION_CHARTS[chart],
        source.level_chart(VERSION, subject, chart, wanted),
        revision=f"version/{version.pk}/{chart}/{wanted.steps}",
        targets=TARGETS.get(chart, ()),
        marks=marked,
    )


def find_version(pk: int) -> ModelVersion:
    """Give one version with its model.

    Raises:
        NotFound: if there is none.
    """
    found = ModelVersion.objects.select_related("model").filter(pk=pk).first()
    if found is None:
        raise NotFound(f"There is no model version {pk}.")
    return found


def version_marks(version: ModelVersion, wanted: Window) -> list[Mark]:
    """Give the changes of the pools that serve a version, and the table's epochs."""
    pools = list(version.pools.values_list("slug", flat=True))
    members = Replica.objects.filter(pool__slug__in=pools).values_list("public_id", flat=True)
    return changes(wanted, target__in=[*pools, *members])


class Charts(Page):
    """A page whose charts are rolled up by the minute."""

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Say how far roll-ups are and, for a whole page, draw the charts."""
        state = RollUpState.objects.first()
        context: dict[str, Any] = {
            "rolled_until": state and state.minutes_until,
            "page_has_window": True,
        }
        if not getattr(self.request, "htmx", False):
            name = preferences.read(self.request).window
            context["charts"] = self.charts(name, window(name, time.time()), **kwargs)
        return super().get_context_data(**kwargs) | context

    def charts(self, name: str, wanted: Window, **kwargs: Any) -> list[Chart]:
        """Give the page's charts."""
        raise NotImplementedError


class FleetPage(Charts):
    """All pools together."""

    template_name = "overview/fleet.html"
    fragment_name = "overview/_fleet.html"
    nav_name = "fleet"
    title = "Fleet"
    api_path = "/api/v1/series/"

    def charts(self, name: str, wanted: Window, **kwargs: Any) -> list[Chart]:
        """Give the fleet's charts."""
        marked = changes(wanted)
        return embedded(
            FLEET_CHARTS,
            lambda c: reverse("fleet-chart", args=[c]) + f"?window={name}",
            lambda c: fleet_payload(c, wanted, marked),
        )


class VersionPage(Charts):
    """One model version, over the pools that serve it."""

    template_name = "overview/version.html"
    fragment_name = "overview/_version.html"
    nav_name = "versions"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add the version and its pools."""
        version = find_version(kwargs["pk"])
        return super().get_context_data(**kwargs) | {
            "title": f"{version.model.name} {version.name}",
            "api_path": f"/api/v1/model-versions/{version.pk}/",
            "version": version,
            "pools": version.pools.all(),
        }

    def charts(self, name: str, wanted: Window, **kwargs: Any) -> list[Chart]:
        """Give the version's charts."""
        version = find_version(kwargs["pk"])
        marked = version_marks(version, wanted)
        return embedded(
            VERSION_CHARTS,
            lambda c: reverse("version-chart", args=[version.pk, c]) + f"?window={name}",
            lambda c: version_payload(version, c, wanted, marked),
        )


class FleetChart(ChartView):
    """One chart of the fleet."""

    known = tuple(FLEET_CHARTS)

    def build(self, wanted: Window, **address: str) -> dict[str, Any]:
        """Build it."""
        return fleet_payload(address["chart"], wanted, changes(wanted))


class VersionChart(ChartView):
    """One chart of a version."""

    known = tuple(VERSION_CHARTS)

    def build(self, wanted: Window, **address: str) -> dict[str, Any]:
        """Build it for a version that exists."""
        version = find_version(int(address["pk"]))
        return version_payload(version, address["chart"], wanted, version_marks(version, wanted))


class TenantChart(ChartView):
    """One chart of a tenant."""

    known = tuple(TENANT_CHARTS)

    def build(self, wanted: Window, **address: str) -> dict[str, Any]:
        """Build it for a tenant that exists."""
        tenant, chart = tenants.tenant(address["slug"]), address["chart"]
        titles: Mapping[str, str] = TENANT_CHARTS
        return payload(
            titles[chart],
            source.level_chart(TENANT, tenant.slug, chart, wanted),
            revision=f"tenant/{tenant.slug}/{chart}/{wanted.steps}",
        )


class AreaChart(AreaRequired, TenantChart):
    """The same in a tenant's own area."""
