"""The route table."""

from django.urls import include, path

handler500 = "controlplane.failures.server_error"

urlpatterns: list = [
    path("", include("controlplane.api.urls")),
    path("", include("controlplane.overview.urls")),
    path("", include("controlplane.fleet.urls")),
    path("", include("controlplane.catalog.urls")),
    path("", include("controlplane.routing.urls")),
    path("", include("controlplane.tenants.urls")),
    path("", include("controlplane.audit.urls")),
    path("", include("controlplane.usage.urls")),
    path("", include("controlplane.planning.urls")),
    path("", include("controlplane.scaling.urls")),
    path("", include("controlplane.rollouts.urls")),
    path("", include("controlplane.reliability.urls")),
    path("", include("controlplane.declarative.urls")),
]
