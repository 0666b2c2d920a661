"""A tenant's own usage: sums, models, keys, and the hours as charts."""

from __future__ import annotations

import csv
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone

from controlplane.console import charts, preferences
from controlplane.console.charts import Chart
from controlplane.console.listing import safe
from controlplane.telemetry import figures, history
from controlplane.telemetry.payloads import payload
from controlplane.tenants.selectors import api_keys
from controlplane.tenants.views.area import AreaPage, AreaRequired
from controlplane.tenants.views.pages import TENANT_CHARTS
from controlplane.usage import hours
from controlplane.usage.hours import Stretch

DAYS: Final = {"1d": "24 hours", "7d": "7 days", "30d": "30 days"}


class AreaUsage(AreaPage):
    """What was asked for and used, from the usage records of all agents."""

    template_name = "area/usage.html"
    fragment_name = "area/_usage.html"
    nav_name = "area-usage"
    title = "Usage"

    @property
    def stretch_name(self) -> str:
        """Give the stretch the reader chose."""
        asked = self.request.GET.get("days", "")
        return asked if asked in DAYS else "1d"

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer with the page, its live part, or CSV by hour, model and key."""
        if request.GET.get("csv"):
            return self._csv()
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Add up what is booked, and lay the hours out."""
        slug = self.area.tenant.slug
        stretch = Stretch.of(self.stretch_name, timezone.now())
        rows = hours.booked(stretch, tenants=[slug])
        names = dict(api_keys(tenant=slug).values_list("public_id", "name"))
        return super().get_context_data(**kwargs) | {
            "api_path": f"/api/v1/usage/?tenant={slug}",
            "stretches": DAYS,
            "stretch": self.stretch_name,
            "since": stretch.since,
            "totals": hours.totals(rows),
            "refused": history.statuses_since("tenant", slug, stretch.since)["429"],
            "models": hours.by(rows, "model"),
            "keys": [
                line | {"name": names.get(line["api_key"], line["api_key"])}
                for line in hours.by(rows, "api_key")
            ],
            "by_hour": self._by_hour(rows, stretch),
            "charts": self._live(),
            "page_has_window": True,
        }

    def _by_hour(self, rows: Any, stretch: Stretch) -> list[Chart]:
        tenant = self.area.tenant
        return [
            Chart(
                id=f"hours-{chart}",
                title=title,
                url=reverse("area-hours", args=[tenant.slug, chart]) + f"?days={self.stretch_name}",
                payload=hour_chart(rows, chart, stretch, tenant),
            )
            for chart, (title, _, _) in hours.CHARTS.items()
        ]

    def _live(self) -> list[Chart]:
        window = preferences.read(self.request).window
        slug = self.area.tenant.slug
        return [
            Chart(
                id=name,
                title=title,
                url=reverse("area-chart", args=[slug, name]) + f"?window={window}",
            )
            for name, title in TENANT_CHARTS.items()
        ]

    def _csv(self) -> HttpResponse:
        slug = self.area.tenant.slug
        rows = hours.booked(Stretch.of(self.stretch_name, timezone.now()), tenants=[slug])
        columns = ("hour", "model", "api_key")
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="usage-{slug}.csv"'
        writer = csv.writer(response)
        writer.writerow([*columns, *hours.SUMMED])
        for line in sorted(hours.by(rows, *columns), key=lambda r: str(r["hour"])):
            writer.writerow([safe(line[c]) for c in (*columns, *hours.SUMMED)])
        return response


def hour_chart(rows: Any, chart: str, stretch: Stretch, tenant: Any) -> dict[str, Any]:
    """Give what charts.js draws of a tenant's hours."""
    return payload(
        hours.CHARTS[chart][0],
        hours.series(rows, chart, stretch, tenant.created_at),
        revision=f"{tenant.slug}/hours/{chart}/{stretch.window.steps}",
    )


class AreaHours(AreaRequired):
    """Answers with the figure, or 304 when the browser draws it already."""

    def get(self, request: HttpRequest, slug: str, chart: str) -> HttpResponse:
        """Build it for the stretch in the address."""
        if chart not in hours.CHARTS:
            raise Http404("There is no such chart.")
        stretch = Stretch.of(request.GET.get("days", ""), timezone.now())
        rows = hours.booked(stretch, tenants=[slug])
        built = hour_chart(rows, chart, stretch, self.area.tenant)
        return charts.answer(request, figures.encode(built))
