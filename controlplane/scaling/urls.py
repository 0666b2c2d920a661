"""Addresses of scaling's pages."""

from django.urls import path

from controlplane.scaling import views

urlpatterns = [
    path("scaling/", views.ScalingList.as_view(), name="scaling"),
    path("scaling/<slug:slug>/", views.ScalingPage.as_view(), name="scaling-pool"),
    path("scaling/<slug:slug>/policy/", views.PolicyEdit.as_view(), name="scaling-policy"),
    path("scaling/<slug:slug>/override/", views.OverrideEdit.as_view(), name="scaling-override"),
    path("scaling/<slug:slug>/end-override/", views.EndOverride.as_view(), name="end-override"),
]
