"""Addresses of the fleet's pages."""

from django.urls import path

from controlplane.fleet.views import (
    adapter_changes,
    adapters,
    area,
    charts,
    nodes,
    pools,
    register,
    replicas,
    shadows,
    traffic,
    which_model,
)

urlpatterns = [
    path("pools/", pools.PoolList.as_view(), name="pools"),
    path("register/pool/", register.RegisterPool.as_view(), name="register-pool"),
    path("register/replica/", register.RegisterReplica.as_view(), name="register-replica"),
    path("pools/<slug:slug>/", pools.PoolPage.as_view(), name="pool"),
    path("pools/<slug:slug>/edit/", pools.PoolEdit.as_view(), name="pool-edit"),
    path("pools/<slug:slug>/traffic/", traffic.SplitEdit.as_view(), name="pool-traffic"),
    path("pools/<slug:slug>/shadow/", shadows.ShadowEdit.as_view(), name="pool-shadow"),
    path("live/pools/<slug:slug>/<slug:chart>.json", charts.PoolChart.as_view(), name="pool-chart"),
    path("replicas/<slug:replica_id>/", replicas.ReplicaPage.as_view(), name="replica"),
    path("replicas/<slug:replica_id>/drain/", replicas.DrainReplica.as_view(), name="drain"),
    path("replicas/<slug:replica_id>/eject/", replicas.EjectReplica.as_view(), name="eject"),
    path("replicas/<slug:replica_id>/restore/", replicas.RestoreReplica.as_view(), name="restore"),
    path(
        "live/replicas/<slug:replica_id>/<slug:chart>.json",
        charts.ReplicaChart.as_view(),
        name="replica-chart",
    ),
    path("nodes/", nodes.NodeList.as_view(), name="nodes"),
    path("nodes/<slug:name>/", nodes.NodePage.as_view(), name="node"),
    path("live/nodes/<slug:name>/<slug:chart>.json", charts.NodeChart.as_view(), name="node-chart"),
    path("t/<slug:slug>/models/", area.AreaModels.as_view(), name="area-models"),
    path("adapters/", adapters.AdapterList.as_view(), name="adapters"),
    path("adapters/upload/", adapter_changes.UploadAdapter.as_view(), name="adapter-upload"),
    path("adapters/<slug:public_id>/", adapters.AdapterPage.as_view(), name="adapter"),
    path(
        "adapters/<slug:public_id>/edit/",
        adapter_changes.EditAdapter.as_view(),
        name="adapter-edit",
    ),
    path(
        "adapters/<slug:public_id>/delete/",
        adapter_changes.DeleteAdapter.as_view(),
        name="adapter-delete",
    ),
    path("t/<slug:slug>/adapters/", adapters.AreaAdapters.as_view(), name="area-adapters"),
    path(
        "t/<slug:slug>/adapters/upload/",
        adapter_changes.AreaUpload.as_view(),
        name="area-adapter-upload",
    ),
    path(
        "t/<slug:slug>/adapters/<slug:public_id>/",
        adapters.AreaAdapter.as_view(),
        name="area-adapter",
    ),
    path(
        "t/<slug:slug>/adapters/<slug:public_id>/edit/",
        adapter_changes.AreaEditAdapter.as_view(),
        name="area-adapter-edit",
    ),
    path(
        "t/<slug:slug>/adapters/<slug:public_id>/delete/",
        adapter_changes.AreaDeleteAdapter.as_view(),
        name="area-adapter-delete",
    ),
    path("which-model/", which_model.WhichModel.as_view(), name="which-model"),
    path("which-model/<path:name>/edit/", which_model.EditRule.as_view(), name="which-model-edit"),
]
