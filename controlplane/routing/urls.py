"""Addresses of the routing pages."""

from django.urls import path

from controlplane.routing import views

urlpatterns = [
    path("routing/", views.RoutingPage.as_view(), name="routing"),
    path("routing/explain/", views.ExplainView.as_view(), name="explain"),
    path("routing/republish/", views.Republish.as_view(), name="republish"),
    path("routing/epochs/<int:epoch>/", views.EpochPage.as_view(), name="epoch"),
    path(
        "routing/agents/<slug:agent>/retry/", views.RetryDelivery.as_view(), name="retry-delivery"
    ),
    path("live/observed/<int:revision>/", views.ObservedView.as_view(), name="observed"),
]
