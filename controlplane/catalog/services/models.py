"""Models: the names clients ask for."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from controlplane import locking
from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.catalog import selectors
from controlplane.catalog.models import MODEL_NAME, Model
from controlplane.domain import which_model
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.wake import waker


class ModelFields(TypedDict, total=False):
    """What may be said of a model, at creation and later."""

    kind: str
    aliases: list[str]
    description: str
    bytes_per_token: float
    complexity: dict[str, Any] | None  # wire.ComplexityRule
    cascade: dict[str, Any] | None  # wire.CascadeRule


@transaction.atomic
def create_model(*, name: str, actor: Actor, reason: str, **fields: Unpack[ModelFields]) -> Model:
    """Create a public model name; it answers once a pool of one of its versions has a share."""
    model = Model(name=name, **fields)
    locking.check(model)
    _check_names(model)
    _check_rules(model)
    try:
        with transaction.atomic():
            model.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"A model '{name}' exists already.", field="name") from error
    _record("model.create", name, actor=actor, reason=reason, change=(None, _facts(model)))
    return model


@transaction.atomic
def update_model(
    *,
    name: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[ModelFields],
) -> Model:
    """Change a model's aliases or facts; its name is for good."""
    model = _get(name)
    before = _facts(model)
    candidate = Model(name=name, **{**before, **changes})
    locking.check(candidate)
    _check_names(candidate)
    _check_rules(candidate)
    locking.change(model, changes, expected_version=expected_version, called=f"The model '{name}'")
    _record("model.update", name, actor=actor, reason=reason, change=(before, _facts(model)))
    return model


@transaction.atomic
def delete_model(
    *, name: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Remove a model and its versions; refused while pools serve it."""
    model = _get(name)
    pools = selectors.pools_using(name)
    if pools:
        raise Conflict(
            f"The model '{name}' is served by {', '.join(pools)}: delete these pools first.",
            code="in_use",
        )
    before = _facts(model)
    model.versions.all().delete()
    locking.delete(model, expected_version=expected_version, called=f"The model '{name}'")
    _record("model.delete", name, actor=actor, reason=reason, change=(before, None))


def _get(name: str) -> Model:
    model = Model.objects.filter(name=name).first()
    if model is None:
        raise NotFound(f"There is no model '{name}'.")
    return model


def _check_names(model: Model) -> None:
    """Refuse aliases that are no names, and names that would mean two models."""
    aliases = model.aliases
    if not isinstance(aliases, list) or len(set(map(str, aliases))) != len(aliases):
        raise Invalid("aliases is a list of different names.", field="aliases")
    for alias in aliases:
        _check_alias(alias)
    taken = selectors.names_taken(besides=model.name)
    adapters = selectors.adapter_names()
    for name, field in [(model.name, "name"), *((alias, "aliases") for alias in aliases)]:
        if name in taken:
            raise Conflict(f"'{name}' already means the model '{taken[name]}'.", field=field)
        if name in adapters:
            raise Conflict(
                f"'{name}' already means an adapter of the tenant '{adapters[name]}'.", field=field
            )


def _check_rules(model: Model) -> None:
    """Refuse rules that say nothing sound, or name models that are not there."""
    complexity = which_model.complexity_of(model.complexity)
    cascade = which_model.cascade_of(model.cascade)
    named = which_model.targets(complexity, cascade)
    known = set(Model.objects.filter(name__in=named).values_list("name", flat=True))
    field = "complexity" if complexity is not None else "cascade"
    if missing := sorted(named - known - {model.name}):
        raise Invalid(f"There is no model '{missing[0]}' to send requests to.", field=field)
    if cascade is not None and cascade.to == model.name:
        raise Invalid("A cascade leads to another model.", field="cascade")


def _check_alias(alias: Any) -> None:
    try:
        MODEL_NAME(alias if isinstance(alias, str) else "")
    except ValidationError as error:
        raise Invalid(f"alias {alias!r}: {error.messages[0]}", field="aliases") from error


def _facts(model: Model) -> ModelFields:
    return {
        "kind": model.kind,
        "aliases": model.aliases,
        "description": model.description,
        "bytes_per_token": model.bytes_per_token,
        "complexity": model.complexity,
        "cascade": model.cascade,
    }


def _record(verb: str, name: str, *, actor: Actor, reason: str, change: tuple[Any, Any]) -> None:
    audit.record(
        actor=actor,
        verb=verb,
        target=("model", name),
        reason=reason,
        change=change,
        touches_fleet=True,
    )
    transaction.on_commit(waker("routing.publish"))
