"""Addresses of the tenants' pages."""

from django.urls import path

from controlplane.tenants import views

urlpatterns = [
    path("tenants/", views.TenantList.as_view(), name="tenants"),
    path("tenants/<slug:slug>/", views.TenantPage.as_view(), name="tenant"),
    path("tenants/<slug:slug>/keys/new/", views.IssueKey.as_view(), name="issue-key"),
    path("keys/<slug:public_id>/revoke/", views.RevokeKey.as_view(), name="revoke-key"),
]
