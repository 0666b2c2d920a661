"""Addresses of the catalogue's pages."""

from django.urls import path

from controlplane.catalog import views

urlpatterns = [
    path("versions/", views.VersionList.as_view(), name="versions"),
    path("register/version/", views.RegisterVersion.as_view(), name="register-version"),
]
