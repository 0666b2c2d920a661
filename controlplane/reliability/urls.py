"""Addresses of promises, alerts and diagnoses."""

from django.urls import path

from controlplane.reliability.views import alerts, diagnosis, slos

urlpatterns = [
    path("slos/", slos.SloPage.as_view(), name="slos"),
    path("slos/maintenance/", slos.WindowOpen.as_view(), name="maintenance-open"),
    path("slos/maintenance/<int:pk>/close/", slos.WindowClose.as_view(), name="maintenance-close"),
    path("slos/<slug:slug>/edit/", slos.SloEdit.as_view(), name="slo-edit"),
    path("diagnosis/<slug:slug>/", diagnosis.DiagnosisPage.as_view(), name="diagnosis"),
    path("alerts/", alerts.AlertPage.as_view(), name="alerts"),
    path("alerts/<int:pk>/acknowledge/", alerts.Acknowledge.as_view(), name="acknowledge"),
    path("alerts/silences/", alerts.SilenceCreate.as_view(), name="silence"),
    path("alerts/silences/<int:pk>/end/", alerts.SilenceEnd.as_view(), name="silence-end"),
    path("alerts/webhooks/", alerts.WebhookCreate.as_view(), name="webhook"),
    path("alerts/webhooks/<slug:name>/test/", alerts.WebhookTest.as_view(), name="webhook-test"),
    path(
        "alerts/webhooks/<slug:name>/delete/", alerts.WebhookDelete.as_view(), name="webhook-delete"
    ),
]
