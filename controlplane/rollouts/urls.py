"""Addresses of the rollouts' pages."""

from django.urls import path

from controlplane.rollouts import views, views_pairs

urlpatterns = [
    path("rollouts/", views.RolloutList.as_view(), name="rollouts"),
    path("rollouts/start/", views.RolloutStart.as_view(), name="rollout-start"),
    path("shadow-pairs/", views_pairs.ShadowPairList.as_view(), name="shadow-pairs"),
    path("shadow-pairs/<slug:uid>/", views_pairs.ShadowPairPage.as_view(), name="shadow-pair"),
    path(
        "shadow-pairs/<slug:uid>/review/",
        views_pairs.ShadowPairReview.as_view(),
        name="shadow-pair-review",
    ),
    path("rollouts/<int:number>/", views.RolloutPage.as_view(), name="rollout"),
    path(
        "rollouts/<int:number>/<slug:deed>/", views.RolloutAction.as_view(), name="rollout-action"
    ),
]
