"""Reads of the catalogue: models, versions, and which pools use them."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Count, Q, QuerySet

from controlplane.catalog.models import Model, ModelVersion
from controlplane.domain.errors import NotFound
from controlplane.tenants.models import Tenant


def models() -> QuerySet[Model]:
    """Give models with `version_count` (not retired) and `pool_count`."""
    return Model.objects.annotate(
        version_count=Count("versions", filter=Q(versions__retired_at__isnull=True), distinct=True),
        pool_count=Count("versions__pools", distinct=True),
    ).order_by("name")


def models_for(tenants: Collection[str]) -> QuerySet[Model]:
    """Give the models that any of these tenants (by slug) may call; an empty list allows all."""
    lists = Tenant.objects.filter(slug__in=tenants).values_list("allowed_models", flat=True)
    allowed = list(lists)
    if not all(allowed):
        return models()
    return models().filter(name__in={name for names in allowed for name in names})


def model(name: str) -> Model:
    """Give one model by its name, with the same additions, or raise NotFound."""
    found = models().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no model '{name}'.")
    return found


def versions(*, model: str | None = None) -> QuerySet[ModelVersion]:
    """Give versions with their models and `pool_count`; of all models or of one."""
    found = (
        ModelVersion.objects.select_related("model")
        .annotate(pool_count=Count("pools", distinct=True))
        .order_by("model__name", "-created_at", "-pk")
    )
    return found if model is None else found.filter(model__name=model)


def version(version_id: int) -> ModelVersion:
    """Give one version with the same additions, or raise NotFound."""
    found = versions().filter(pk=version_id).first()
    if found is None:
        raise NotFound(f"There is no model version {version_id}.")
    return found


def pools_using(model_name: str) -> list[str]:
    """Give the slugs of the pools that serve any version of a model."""
    rows = ModelVersion.objects.filter(model__name=model_name, pools__isnull=False)
    return sorted(rows.values_list("pools__slug", flat=True))


def names_taken(*, besides: str | None = None) -> dict[str, str]:
    """Give every name and alias clients can ask for, with the model that owns it."""
    taken: dict[str, str] = {}
    for name, aliases in Model.objects.exclude(name=besides).values_list("name", "aliases"):
        taken.update(dict.fromkeys([name, *aliases], name))
    return taken
