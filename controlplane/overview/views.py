"""Pages that look across apps: overview, system, search, profile."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Any

import django
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone

from controlplane import backlog, readiness, wake
from controlplane.audit.models import AuditEvent
from controlplane.audit.selectors import fleet_revision
from controlplane.catalog.models import ModelVersion
from controlplane.console import preferences
from controlplane.console.mixins import Page, RoleRequired, fragment
from controlplane.domain.attention import Problem
from controlplane.fleet import rows, selectors
from controlplane.overview import attention, happenings
from controlplane.overview.search import search
from controlplane.routing import beat
from controlplane.routing import selectors as routing
from controlplane.routing.models import LoopRun
from controlplane.telemetry import recent
from controlplane.telemetry.cache import FlightCache
from controlplane.telemetry.models import RollUpState
from controlplane.telemetry.prometheus import prometheus
from controlplane.telemetry.snapshots import NoData
from controlplane.tenants.scope import scope_of
from controlplane.tenants.views.area import home_of
from routing_agent import wire

# Every open page asks for the number of problems: one look serves all for two seconds.
_problems = FlightCache(max_entries=1, ttl_s=2.0)

# A minute is due when it, the grace for its last reports and a run of the loop are over.
ROLL_UP_DUE_S = 130.0
ROLL_UP_LATE_S = 180.0


def linked(problem: Problem) -> dict[str, Any]:
    """Give a problem with the address of the page that shows more."""
    kind, name = problem.target
    url = reverse(kind, args=[name] if name else []) if kind else ""
    return {"problem": problem, "url": url}


class Overview(Page):
    """Is anything wrong, and where: attention list, pools, the control plane itself."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Send members of tenants to their own area."""
        is_staff = bool(request.role)  # type: ignore[attr-defined]  # asked for once a request
        home = None if is_staff else home_of(scope_of(request.user))
        return redirect(home) if home else super().dispatch(request, *args, **kwargs)

    template_name = "overview/overview.html"
    fragment_name = "overview/_overview.html"
    nav_name = "overview"
    title = "Overview"
    api_path = "/api/v1/system/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather all of it with a constant number of queries."""
        reports = rows.reports()
        pools = list(selectors.pools_overview())
        plane = attention.look()
        problems = attention.problems(pools, reports, plane)
        return super().get_context_data(
            problems=[linked(p) for p in problems],
            silenced=len(plane.firing.silenced),
            rows=rows.pool_rows(pools, reports),
            reports=reports,
            publication=plane.publication,
            revision=fleet_revision(),
            agents=plane.agents,
            agents_behind=plane.behind,
            agents_current=len(plane.agents) - len(plane.behind),
            newest_report_age_s=newest_age_s(reports),
            loops_ran=bool(plane.loops),
            loops_late=[r.name for r in plane.loops if attention.lateness_s(r)],
            prometheus=prometheus_state(),
            happened=happenings.last_hour(),
            has_versions=bool(pools) or ModelVersion.objects.filter(retired_at=None).exists(),
            **kwargs,
        )


def newest_age_s(reports: Any) -> float | None:
    """Give the age of the newest report; None without any."""
    return (
        None if isinstance(reports, NoData) else min((a for _, a in reports.values()), default=None)
    )


def prometheus_state() -> dict[str, Any]:
    """Say whether Prometheus is configured and answers, and since when it last did."""
    client = prometheus()
    if client is None:
        return {"status": "off", "reason": "Charts do without; PROMETHEUS_URL adds one."}
    missing = client.problem()
    return {
        "status": "down" if missing else "ok",
        "reason": missing,
        "answered_at": client.answered_at,
        "url": client.url,
    }


def rolled_up(newest_report_age_s: float | None) -> dict[str, Any]:
    """Say how far roll-ups are, and by how much they are late while agents report."""
    state = RollUpState.objects.first()
    until = state and state.minutes_until
    is_told = newest_report_age_s is not None and newest_report_age_s < ROLL_UP_LATE_S
    behind_s = (timezone.now() - until).total_seconds() if until else 0.0
    late_s = behind_s - ROLL_UP_DUE_S if is_told and behind_s > ROLL_UP_LATE_S else None
    return {"until": until, "late_s": late_s}


class AttentionCount(RoleRequired):
    """How many problems there are: for the menu, the tab's title and its icon."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Answer with the number, or 204 when the reader has it."""

        def look() -> int:
            pools = list(selectors.pools_overview())
            return len(attention.problems(pools, rows.reports(), attention.look()))

        return fragment(request, "overview/_count.html", {"count": _problems.get("n", look)})


class System(Page):
    """Is the control plane itself healthy?"""

    template_name = "overview/system.html"
    fragment_name = "overview/_system.html"
    nav_name = "system"
    title = "System"
    api_path = "/api/v1/system/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Look at database, Redis, Prometheus, loops and this process."""
        ready = readiness.look()
        reports = rows.reports()
        publication = routing.publication()
        revision = fleet_revision()
        return super().get_context_data(
            ready=ready,
            loops=loop_lines(),
            happened=happenings.last_day(),
            backlog=backlog.look(),
            broker=wake.health,
            store_problem=recent.store().problem(),
            newest_report_age_s=newest_age_s(reports),
            rolled=rolled_up(newest_age_s(reports)),
            prometheus=prometheus_state(),
            publication=publication,
            revision=revision,
            unpublished=max(0, revision - publication.published_revision),
            agents=[
                (a, *rows.agent_status(a, a.last_seen_at, publication.epoch))
                for a in selectors.agents()
            ],
            leases=lease_lines(reports),
            versions=versions(),
            **kwargs,
        )


def lease_lines(reports: Any) -> list[tuple[str, wire.LeaseHealth, float]]:
    """Give how each agent's lease calls go: agent, what it told, age of that in seconds."""
    if isinstance(reports, NoData):
        return []
    names = {a.public_id: a.node.name for a in selectors.agents()}
    lines = [
        (names.get(agent, agent), report.leases, age_s)
        for agent, (report, age_s) in reports.items()
        if report.leases is not None
    ]
    return sorted(lines, key=lambda line: line[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLine:
    """One loop that beat starts, with its last run if there was one."""

    name: str
    interval_s: float
    run: LoopRun | None
    late_s: float | None = None
    due_in_s: float | None = None  # of one that never ran


def loop_lines() -> list[LoopLine]:
    """Give all loops that beat starts, also those that have not run yet."""
    runs = {run.name: run for run in LoopRun.objects.all()}
    intervals = {run.name: run.interval_s for run in runs.values()} | beat.intervals()
    return [_loop_line(name, s, runs.get(name)) for name, s in sorted(intervals.items())]


def _loop_line(name: str, interval_s: float, run: LoopRun | None) -> LoopLine:
    if run is not None:
        late_s = attention.lateness_s(run)
        return LoopLine(name=name, interval_s=interval_s, run=run, late_s=late_s)
    # Beat counts a loop's first interval from its own first start, with which the trail begins.
    first = AuditEvent.objects.order_by("id").values_list("at", flat=True).first()
    age_s = (timezone.now() - first).total_seconds() if first else 0.0
    return LoopLine(
        name=name, interval_s=interval_s, run=None, due_in_s=max(0.0, interval_s - age_s)
    )


def versions() -> list[tuple[str, str]]:
    """Give what this process runs on."""
    return [
        ("Python", platform.python_version()),
        ("Django", django.get_version()),
        ("Database", connection.vendor),
    ]


class Search(RoleRequired):
    """Take me there."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Answer with links; a single hit of a plain request is opened."""
        text = request.GET.get("q", "")[:200]
        hits = search(text)
        context = {"hits": hits, "search_text": text, "title": "Search", "nav_name": ""}
        if getattr(request, "htmx", False):
            return render(request, "overview/_hits.html", context)
        if len(hits) == 1:
            return redirect(hits[0].url)
        return render(request, "overview/search.html", context)


class Profile(RoleRequired):
    """What this browser shows: theme, density, shortcuts."""

    choices = {
        "theme": preferences.THEMES,
        "density": preferences.DENSITIES,
        "shortcuts": ("on", "off"),
    }

    def admit(self, request: HttpRequest, **kwargs: Any) -> None:
        """Let everybody signed in choose for their browser."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """Show the choices."""
        context = {"title": "Profile", "nav_name": "", "choices": self.choices}
        return render(request, "overview/profile.html", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Keep them in this browser."""
        response = redirect("profile")
        for name, allowed in self.choices.items():
            if request.POST.get(name) in allowed:
                preferences.remember(response, name, request.POST[name])
        return response
