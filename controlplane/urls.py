"""The route table."""

from django.urls import include, path

urlpatterns: list = [
    path("", include("controlplane.api.urls")),
]
