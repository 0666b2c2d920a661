"""Address of the planner."""

from django.urls import path

from controlplane.planning import views

urlpatterns = [path("planning/", views.PlannerPage.as_view(), name="planning")]
