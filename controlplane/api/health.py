"""`/healthz`, `/readyz` and `/metrics` of the control plane."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from controlplane import readiness
from controlplane.api.metrics import registry


@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """Say that the process is up; looks at nothing else."""
    return HttpResponse("ok\n", content_type="text/plain")


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Say whether requests can be answered, and name what is missing."""
    found = readiness.look()
    body = {
        "status": found.status,
        "database": found.database_fault or "ok",
        "missing_migrations": list(found.missing_migrations),
        "redis": found.broker_fault or "ok",
    }
    return JsonResponse(body, status=200 if found.is_ready else 503)


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Give the control plane's own figures to Prometheus."""
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
