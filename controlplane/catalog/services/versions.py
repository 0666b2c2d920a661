"""Model versions: immutable once made, retired when nothing serves them."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack, get_args

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane import locking
from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.catalog.models import Model, ModelVersion
from controlplane.domain.errors import Conflict, Invalid, NotFound
from routing_agent import wire


class VersionFields(TypedDict, total=False):
    """What may be said of a version, at its creation only."""

    source: str
    parameters: int | None
    layers: int | None
    kv_heads: int | None
    head_dim: int | None
    dtype: str
    kv_dtype: str
    context_tokens: int | None
    engine: str
    engine_version: str
    engine_arguments: dict[str, Any]


@transaction.atomic
def create_version(
    *, model: str, name: str, actor: Actor, reason: str, **fields: Unpack[VersionFields]
) -> ModelVersion:
    """Register weights and engine settings under a name that is unique within the model."""
    owner = Model.objects.filter(name=model).first()
    if owner is None:
        raise NotFound(f"There is no model '{model}'.", field="model")
    version = ModelVersion(model=owner, name=name, **fields)
    _check(version)
    try:
        with transaction.atomic():
            version.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"'{model}' has a version '{name}' already.", field="name") from error
    _record("model-version.create", version, actor, reason, (None, {**fields, "name": name}))
    return version


@transaction.atomic
def retire_version(*, version_id: int, actor: Actor, reason: str) -> ModelVersion:
    """Take a version out of the offer; refused while pools serve it. Twice is harmless."""
    version = ModelVersion.objects.select_related("model").filter(pk=version_id).first()
    if version is None:
        raise NotFound(f"There is no model version {version_id}.")
    pools = sorted(version.pools.values_list("slug", flat=True))
    if pools:
        raise Conflict(
            f"The version '{version.name}' is served by {', '.join(pools)}: delete these first.",
            code="in_use",
        )
    rows = ModelVersion.objects.filter(pk=version_id, retired_at__isnull=True)
    if rows.update(retired_at=timezone.now()):
        _record("model-version.retire", version, actor, reason, (None, None))
    version.refresh_from_db(fields=["retired_at"])
    return version


def _check(version: ModelVersion) -> None:
    locking.check(version)
    if version.engine not in get_args(wire.EngineName):
        known = ", ".join(get_args(wire.EngineName))
        raise Invalid(f"engine is one of {known}.", field="engine")
    if not isinstance(version.engine_arguments, dict):
        raise Invalid("engine_arguments is an object of options.", field="engine_arguments")


def _record(
    verb: str, version: ModelVersion, actor: Actor, reason: str, change: tuple[Any, Any]
) -> None:
    target = ("model-version", f"{version.model.name} {version.name}")
    audit.record(actor=actor, verb=verb, target=target, reason=reason, change=change)
