"""Addresses of the pages that look across apps."""

from django.urls import path

from controlplane.overview import figures, views

urlpatterns = [
    path("", views.Overview.as_view(), name="overview"),
    path("live/attention/", views.AttentionCount.as_view(), name="attention"),
    path("fleet/", figures.FleetPage.as_view(), name="fleet"),
    path("versions/<int:pk>/", figures.VersionPage.as_view(), name="version"),
    path("live/fleet/<slug:chart>.json", figures.FleetChart.as_view(), name="fleet-chart"),
    path(
        "live/versions/<int:pk>/<slug:chart>.json",
        figures.VersionChart.as_view(),
        name="version-chart",
    ),
    path(
        "live/tenants/<slug:slug>/<slug:chart>.json",
        figures.TenantChart.as_view(),
        name="tenant-chart",
    ),
    path("t/<slug:slug>/live/<slug:chart>.json", figures.AreaChart.as_view(), name="area-chart"),
    path("system/", views.System.as_view(), name="system"),
    path("search/", views.Search.as_view(), name="search"),
    path("profile/", views.Profile.as_view(), name="profile"),
]
