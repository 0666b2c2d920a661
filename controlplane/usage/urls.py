"""Addresses of the requests' pages."""

from django.urls import path

from controlplane.usage import views

urlpatterns = [
    path("requests/", views.RequestList.as_view(), name="requests"),
    path("requests/<path:request_id>/", views.RequestPage.as_view(), name="request"),
]
