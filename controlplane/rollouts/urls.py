"""Addresses of the rollouts' pages."""

from django.urls import path

from controlplane.rollouts import views

urlpatterns = [
    path("rollouts/", views.RolloutList.as_view(), name="rollouts"),
    path("rollouts/start/", views.RolloutStart.as_view(), name="rollout-start"),
    path("rollouts/<int:number>/", views.RolloutPage.as_view(), name="rollout"),
    path(
        "rollouts/<int:number>/<slug:deed>/", views.RolloutAction.as_view(), name="rollout-action"
    ),
]
