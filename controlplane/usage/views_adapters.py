"""What an adapter was asked for, as a part of its page, which belongs to an app below."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from controlplane.fleet.views.adapters import InArea, InConsole
from controlplane.usage import hours
from controlplane.usage.hours import Stretch


class AdapterUsage(InConsole):
    """Requests and tokens of an adapter, all its versions, from the usage records of all agents."""

    def get(self, request: HttpRequest, public_id: str, **_: str) -> HttpResponse:
        """Add up what is booked."""
        adapter = self.adapter(public_id)
        names = [version.served_name for version in adapter.versions.all()]
        sums = {}
        for stretch in ("1d", "30d"):
            rows = hours.booked(Stretch.of(stretch, timezone.now())).filter(adapter__in=names)
            own = self.tenants()
            sums[stretch] = hours.totals(rows if own is None else rows.filter(tenant__in=own))
        return render(request, "adapters/_usage.html", {"sums": sums, "in_area": bool(self.prefix)})


class AreaAdapterUsage(InArea, AdapterUsage):
    """The same for a tenant: its own requests alone."""
