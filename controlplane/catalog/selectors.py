"""Reads of the catalogue: models, versions, which pools use them, and tenants' adapters."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Count, Prefetch, Q, QuerySet

from controlplane.catalog.models import Adapter, AdapterVersion, Model, ModelVersion
from controlplane.domain.adapters import BaseModel
from controlplane.domain.errors import Invalid, NotFound
from controlplane.domain.pool_settings import resolved_as_far_as_possible
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


def adapters(*, tenants: Collection[str] | None = None) -> QuerySet[Adapter]:
    """Give adapters, deleted ones that are still loaded somewhere included.

    Args:
        tenants: by slug; only what these own or may call because it is shared with them.
    """
    found = Adapter.objects.select_related("tenant", "model").prefetch_related(
        "shared_with",
        Prefetch("versions", queryset=AdapterVersion.objects.order_by("-number")),
    )
    if tenants is None:
        return found.order_by("tenant__slug", "name")
    own, shared = Q(tenant__slug__in=tenants), Q(shared_with__slug__in=tenants)
    keys = Adapter.objects.filter(own | (shared & Q(deleted_at__isnull=True)))
    return found.filter(pk__in=keys.values("pk")).order_by("tenant__slug", "name")


def adapter(public_id: str, *, tenants: Collection[str] | None = None) -> Adapter:
    """Give one adapter, or raise NotFound: also for one that these tenants may not see."""
    found = adapters(tenants=tenants).filter(public_id=public_id).first()
    if found is None:
        raise NotFound(f"There is no adapter '{public_id}'.")
    return found


def adapter_names() -> dict[str, str]:
    """Give each name adapters are called by, with or without the owner, and whose adapter it is."""
    taken: dict[str, str] = {}
    live = Adapter.objects.filter(deleted_at__isnull=True).order_by("tenant__slug")
    for slug, name in live.values_list("tenant__slug", "name"):
        taken.setdefault(name, slug)
        taken[f"{slug}/{name}"] = slug
    return taken


def live_adapter_versions() -> QuerySet[AdapterVersion]:
    """Give what may be called or is being loaded, with adapters, tenants and models."""
    return (
        AdapterVersion.objects.select_related("adapter__tenant", "adapter__model")
        .prefetch_related("adapter__shared_with")
        .filter(state__in=["incoming", "active"], adapter__deleted_at__isnull=True)
    )


def stored_file(digest: str, name: str) -> AdapterVersion | None:
    """Give a version that agents may fetch this file of; None if there is none."""
    found = live_adapter_versions().filter(digest=digest).first()
    if found is None or all(file.get("name") != name for file in found.files):
        return None
    return found


def base_of(*, model: str, pool: str, tenant: str) -> BaseModel:
    """Give what is known of the model that an adapter is meant for, by model or pool.

    Raises:
        Invalid: when neither is named, or the pool serves another model.
        NotFound: when it does not exist, or the tenant may not call it.
    """
    owner = _base_model(model, pool)
    allowed = Tenant.objects.filter(slug=tenant).values_list("allowed_models", flat=True).first()
    if allowed is None:
        raise NotFound(f"There is no tenant '{tenant}'.", field="tenant")
    if allowed and owner.name not in allowed:
        raise NotFound(f"There is no model '{owner.name}' for this tenant.", field="model")
    versions = owner.versions.filter(retired_at__isnull=True).prefetch_related("pools__replicas")
    rows = [v for v in versions if not pool or pool in {p.slug for p in v.pools.all()}]
    pools = [p for v in rows for p in v.pools.all() if not pool or p.slug == pool]
    settings = [resolved_as_far_as_possible(p.settings)[0] for p in pools]
    return BaseModel(
        model=owner.name,
        names=(owner.name, *owner.aliases, *(v.source for v in rows if v.source)),
        pool=pool,
        kind=owner.kind,
        max_rank=max((s.adapter_max_rank for s in settings), default=64),
        layers=_one({v.layers for v in rows}),
        kv_width=_one({_kv_width(v) for v in rows}),
        engines=frozenset(r.engine for p in pools for r in p.replicas.all()),
    )


def _base_model(model: str, pool: str) -> Model:
    if not model and not pool:
        raise Invalid("Name the base model, or the pool the adapter is for.", field="model")
    if not pool:
        found = Model.objects.filter(name=model).first()
        if found is None:
            raise NotFound(f"There is no model '{model}'.", field="model")
        return found
    version = ModelVersion.objects.select_related("model").filter(pools__slug=pool).first()
    if version is None:
        raise NotFound(f"There is no pool '{pool}'.", field="pool")
    if model and version.model.name != model:
        raise Invalid(f"The pool '{pool}' serves '{version.model.name}'.", field="pool")
    return version.model


def _one(values: set[int | None]) -> int | None:
    """Give the value that all versions share; None when they differ or do not tell."""
    return next(iter(values)) if len(values) == 1 else None


def _kv_width(version: ModelVersion) -> int | None:
    if version.kv_heads is None or version.head_dim is None:
        return None
    return version.kv_heads * version.head_dim


def model_names_for(tenant: Tenant) -> list[str]:
    """Give the models a tenant may call, by name."""
    names = Model.objects.order_by("name").values_list("name", flat=True)
    allowed = set(tenant.allowed_models)
    return [name for name in names if not allowed or name in allowed]
