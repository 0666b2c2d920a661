"""The models a tenant may call, as it sees them: no pools, no nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.catalog.models import Model
from controlplane.domain.replica_states import State
from controlplane.fleet.models import TrafficSplit
from controlplane.tenants.models import Tenant
from controlplane.tenants.views.area import AreaPage


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableModel:
    """A model as a tenant may call it."""

    model: Model
    names: tuple[str, ...]  # what it may be called by
    context_tokens: int | None
    status: str


def callable_models(tenant: Tenant) -> list[CallableModel]:
    """Give the models a tenant may call, with whether anything serves them now."""
    contexts: dict[int, list[int]] = {}
    ready: dict[int, int] = {}
    splits = TrafficSplit.objects.filter(weight__gt=0).select_related("pool__model_version")
    for split in splits.prefetch_related("pool__replicas"):
        replicas = split.pool.replicas.all()
        found = sum(r.state == State.READY for r in replicas)
        ready[split.model_id] = ready.get(split.model_id, 0) + found
        if split.pool.model_version.context_tokens:
            contexts.setdefault(split.model_id, []).append(split.pool.model_version.context_tokens)
    return [
        CallableModel(
            model=model,
            names=(model.name, *model.aliases),
            context_tokens=max(contexts.get(model.pk, ()), default=None),
            status="off" if model.pk not in ready else "ready" if ready[model.pk] else "down",
        )
        for model in Model.objects.order_by("name")
        if not tenant.allowed_models or model.name in tenant.allowed_models
    ]


class AreaModels(AreaPage):
    """What the tenant may call, and how."""

    template_name = "area/models.html"
    fragment_name = "area/_models.html"
    nav_name = "area-models"
    title = "Models"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather the models."""
        return super().get_context_data(**kwargs) | {
            "api_path": "/api/v1/models/",
            "models": callable_models(self.area.tenant),
        }
