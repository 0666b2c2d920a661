"""Paths of the REST API, its documentation, and the probes of this process."""

from __future__ import annotations

from django.urls import include, path, re_path
from drf_spectacular.views import SpectacularAPIView

from controlplane.api import docs, errors, health
from controlplane.api.router import router

urlpatterns = [
    path("healthz", health.healthz, name="healthz"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", health.metrics, name="metrics"),
    path("api/schema/", SpectacularAPIView.as_view(), name="api-schema"),
    path("api/docs/", docs.DocsView.as_view(url_name="api-schema"), name="api-docs"),
    path("api/v1/agent/", include("controlplane.api.agents")),
    path("api/v1/", include(router.urls)),
    re_path(r"^api/", errors.not_found),
]
