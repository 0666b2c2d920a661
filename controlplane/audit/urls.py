"""Addresses of the audit pages."""

from django.urls import path

from controlplane.audit import views

urlpatterns = [
    path("audit/", views.AuditList.as_view(), name="audit"),
    path("live/audit/<int:newest>/", views.NewEvents.as_view(), name="new-events"),
]
