"""Addresses of the configuration page."""

from django.urls import path

from controlplane.declarative import views

urlpatterns = [
    path("configuration/", views.ConfigurationPage.as_view(), name="configuration"),
    path("configuration/signalbox.yaml", views.Download.as_view(), name="configuration-file"),
]
