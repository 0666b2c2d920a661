"""Addresses of the pages that look across apps, and of signing in and out."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from controlplane.overview import views

urlpatterns = [
    path("", views.Overview.as_view(), name="overview"),
    path("live/attention/", views.AttentionCount.as_view(), name="attention"),
    path("system/", views.System.as_view(), name="system"),
    path("search/", views.Search.as_view(), name="search"),
    path("profile/", views.Profile.as_view(), name="profile"),
    path("login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
]
