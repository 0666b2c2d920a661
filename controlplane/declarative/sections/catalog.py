"""Models and their versions."""

from __future__ import annotations

from typing import Any

from controlplane.catalog import services
from controlplane.catalog.models import Model, ModelVersion
from controlplane.declarative.section import Entry, Section, Who
from controlplane.domain.errors import Conflict


class ModelEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A name clients ask for."""

    name: str
    kind: str = "chat"
    aliases: list[str] = []
    description: str = ""
    bytes_per_token: float = 4.0
    complexity: dict[str, Any] | None = None
    cascade: dict[str, Any] | None = None


def _models() -> list[ModelEntry]:
    return [
        ModelEntry(
            name=m.name,
            kind=m.kind,
            aliases=sorted(m.aliases),
            description=m.description,
            bytes_per_token=m.bytes_per_token,
            complexity=m.complexity,
            cascade=m.cascade,
        )
        for m in Model.objects.all()
    ]


def _lead_on(entry: ModelEntry, who: Who) -> None:
    """Set the rules that lead to other models, once all of them are there."""
    if entry.complexity is not None or entry.cascade is not None:
        services.update_model(
            name=entry.name, complexity=entry.complexity, cascade=entry.cascade, **who
        )


MODELS = Section(
    name="models",
    entry=ModelEntry,
    what="model",
    read=_models,
    create=lambda e, who: services.create_model(**e.fields("complexity", "cascade"), **who),
    finish=_lead_on,
    update=lambda old, e, who: services.update_model(**e.fields(), **who),
    remove=lambda e, who: services.delete_model(name=e.name, **who),
)


class VersionEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights and engine settings: immutable, so a file may make and retire them."""

    KEY = ("model", "name")

    model: str
    name: str
    source: str = ""
    parameters: int | None = None
    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    context_tokens: int | None = None
    engine: str = "vllm"
    engine_version: str = ""
    engine_arguments: dict[str, Any] = {}
    retired: bool = False


def _versions() -> list[VersionEntry]:
    named = ("name", "source", "parameters", "layers", "kv_heads", "head_dim", "dtype", "kv_dtype",
             "context_tokens", "engine", "engine_version", "engine_arguments")  # fmt: skip
    return [
        VersionEntry(
            model=v.model.name,
            retired=v.retired_at is not None,
            **{name: getattr(v, name) for name in named},
        )
        for v in ModelVersion.objects.select_related("model")
    ]


def _create_version(entry: VersionEntry, who: Who) -> None:
    row = services.create_version(**entry.fields("retired"), **who)
    if entry.retired:
        services.retire_version(version_id=row.pk, **who)


def _update_version(old: VersionEntry, entry: VersionEntry, who: Who) -> None:
    changed = sorted(
        name for name in old.__struct_fields__ if getattr(old, name) != getattr(entry, name)
    )
    if changed != ["retired"] or old.retired:
        raise Conflict(
            f"Version '{entry.key}' is immutable: {', '.join(changed)} cannot change. Register"
            " another version.",
            field=changed[0],
        )
    _retire(entry, who)


def _retire(entry: VersionEntry, who: Who) -> None:
    row = ModelVersion.objects.get(model__name=entry.model, name=entry.name)
    services.retire_version(version_id=row.pk, **who)


VERSIONS = Section(
    name="versions",
    entry=VersionEntry,
    what="model version",
    read=_versions,
    create=_create_version,
    update=_update_version,
)
