"""Addresses of the requests' pages."""

from django.urls import path

from controlplane.usage import views, views_adapters, views_area

urlpatterns = [
    path("requests/", views.RequestList.as_view(), name="requests"),
    path("requests/<path:request_id>/", views.RequestPage.as_view(), name="request"),
    path("t/<slug:slug>/", views_area.AreaUsage.as_view(), name="area-usage"),
    path(
        "t/<slug:slug>/hours/<slug:chart>.json", views_area.AreaHours.as_view(), name="area-hours"
    ),
    path(
        "adapters/<slug:public_id>/usage/",
        views_adapters.AdapterUsage.as_view(),
        name="adapter-usage",
    ),
    path(
        "t/<slug:slug>/adapters/<slug:public_id>/usage/",
        views_adapters.AreaAdapterUsage.as_view(),
        name="area-adapter-usage",
    ),
]
