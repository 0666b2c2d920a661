"""Input that is refused rather than guessed: unknown fields, and JSON values of another type."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from rest_framework import serializers
from rest_framework.fields import empty

# What a JSON value must be for each kind of field; DRF alone would take "5" for 5 and 1 for true.
_JSON_TYPES: tuple[tuple[type[serializers.Field], tuple[type, ...], str], ...] = (
    (serializers.BooleanField, (bool,), "true or false"),
    (serializers.IntegerField, (int,), "a whole number"),
    (serializers.FloatField, (int, float), "a number"),
    (serializers.ChoiceField, (str,), "a text"),
    (serializers.CharField, (str,), "a text"),
    (serializers.DateTimeField, (str,), "a time as text, for example 2027-01-31T12:00:00Z"),
    (serializers.ListField, (list,), "a list"),
    (serializers.DictField, (dict,), "an object"),
)


class StrictSerializer(serializers.Serializer):
    """Input whose every field is known and has the type it says."""

    def to_internal_value(self, data: Any) -> Any:
        """Refuse unknown fields and wrong types before anything is converted."""
        if isinstance(data, Mapping):
            problems = {name: [self._unknown(name)] for name in data if name not in self.fields}
            for name, field in self.fields.items():
                problem = type_problem(field, data.get(name, empty))
                if problem:
                    problems[name] = [problem]
            if problems:
                raise serializers.ValidationError(problems)
        return super().to_internal_value(data)

    def _unknown(self, name: str) -> str:
        return f"Unknown field. Known here: {', '.join(sorted(self.fields))}."


class ChangeInput(StrictSerializer):
    """What any change may say beside its own fields."""

    reason = serializers.CharField(
        max_length=500, required=False, allow_blank=True, help_text="Why; kept in the audit log."
    )


class VersionedInput(ChangeInput):
    """A change of something that has a version."""

    version = serializers.IntegerField(
        min_value=1,
        required=False,
        help_text="The version this change was made from; another one answers 409. "
        "The header If-Match says the same.",
    )


class ReadOnlySerializer(serializers.ModelSerializer):
    """How a row is shown; never an input."""

    def get_fields(self) -> dict[str, serializers.Field]:
        """Mark every field read-only, so that the schema says so as well."""
        fields = super().get_fields()
        for field in fields.values():
            field.read_only = True
        return fields


class ObservedSerializer(serializers.Serializer):
    """How many agents run a table that covers a change."""

    n = serializers.IntegerField()
    m = serializers.IntegerField()
    agents_behind = serializers.ListField(child=serializers.CharField())
    silent = serializers.ListField(
        child=serializers.CharField(), help_text="Of those behind, the ones not heard lately."
    )


class ChangeSerializer(serializers.Serializer):
    """What became of a change: poll `routing-tables/observed` until n equals m."""

    audit_event = serializers.IntegerField(allow_null=True)
    fleet_revision = serializers.IntegerField(allow_null=True)
    observed = ObservedSerializer(allow_null=True)
    dry_run = serializers.BooleanField()


@cache
def changed(shown: type[serializers.Serializer]) -> type[serializers.Serializer]:
    """Give the serializer of a write's answer: the thing itself and what became of the change."""
    name = shown.__name__.removesuffix("Serializer")
    body = {"change": ChangeSerializer(), "__doc__": shown.__doc__, "__module__": shown.__module__}
    return type(f"{name}ChangedSerializer", (shown,), _with_meta(shown, body))


def _with_meta(shown: type[serializers.Serializer], body: dict[str, Any]) -> dict[str, Any]:
    meta = getattr(shown, "Meta", None)
    if meta is not None:
        body["Meta"] = type("Meta", (meta,), {"fields": [*meta.fields, "change"]})
    return body


def type_problem(field: serializers.Field, value: Any) -> str:
    """Say what is wrong with a JSON value's type for a field; empty when nothing is."""
    if value is empty or value is None:
        return ""  # required and null are the field's own affair
    for kind, types, said in _JSON_TYPES:
        if isinstance(field, kind):
            return _mismatch(field, value, types, said)
    return ""


def _mismatch(field: serializers.Field, value: Any, types: tuple[type, ...], said: str) -> str:
    is_bool_by_mistake = isinstance(value, bool) and bool not in types
    if is_bool_by_mistake or not isinstance(value, types):
        return f"Must be {said}."
    if isinstance(value, float) and not math.isfinite(value):
        return "Must be a finite number."
    child = getattr(field, "child", None)
    if child is None:
        return ""
    for where, item in _items(value):
        problem = "Must not be null." if item is None and not child.allow_null else ""
        problem = problem or type_problem(child, item)
        if problem:
            return f"[{where}]: {problem}"
    return ""


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)
