"""The form of a pool's policy: its fields come from the one table of settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import forms

from controlplane.domain import pool_settings
from controlplane.domain.errors import Invalid
from controlplane.domain.pool_settings import SETTINGS, Setting
from controlplane.fleet.models import Pool

PREFIX = "setting-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One line of before → after."""

    label: str
    before: str
    after: str


def shown(value: Any) -> str:
    """Write a value as its field shows it."""
    if value is None:
        return ""
    if isinstance(value, (tuple, list)):
        return " ".join(str(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def field_for(setting: Setting) -> forms.Field:
    """Make the input of one setting."""
    label = f"{setting.label} ({setting.unit})" if setting.unit else setting.label
    default = shown(setting.default) or "none"
    if setting.choices:
        default = default.replace("_", " ")
    quoted = re.sub(r"`([^`]*)`", r"“\1”", setting.help)  # the same words stand in the docs
    text = f"{quoted} Default {default}."
    if setting.choices:
        choices = [(c, c.replace("_", " ")) for c in setting.choices]
        return forms.ChoiceField(label=label, help_text=text, choices=choices)
    return forms.CharField(label=label, help_text=text, required=False)


def parsed(setting: Setting, text: str) -> Any:
    """Read what was typed; what does not parse stays text, for the domain to refuse in words."""
    text = text.strip()
    if not text:
        return () if setting.kind == "list" else None if setting.optional else setting.default
    if setting.kind == "list":
        return tuple(text.replace(",", " ").split())
    if setting.kind in ("choice", "text"):
        return text
    try:
        return int(text) if setting.kind == "whole" else float(text)
    except ValueError:
        return text


class PoolForm(forms.Form):
    """Overload policy, description and every setting of a pool."""

    overload_policy = forms.ChoiceField(
        label="When the pool is full", choices=Pool.Overload.choices
    )
    fallback_pool = forms.ModelChoiceField(
        Pool.objects.all(),
        to_field_name="slug",
        required=False,
        empty_label="none",
        label="Fallback pool",
        help_text="Where requests go when this pool is full, with the policy “fall back”.",
    )
    description = forms.CharField(max_length=300, required=False, label="Description")

    def __init__(self, *args: Any, pool: Pool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pool = pool
        choice = self.fields["fallback_pool"]
        choice.queryset = Pool.objects.exclude(pk=pool.pk)  # type: ignore[attr-defined]
        choice.label_from_instance = lambda p: p.slug  # type: ignore[attr-defined]
        for name, setting in SETTINGS.items():
            self.fields[PREFIX + name] = field_for(setting)

    @classmethod
    def of(cls, pool: Pool) -> PoolForm:
        """Give the form as the pool is now."""
        effective, _ = pool_settings.resolved_as_far_as_possible(pool.settings)
        initial: dict[str, str | None] = {
            PREFIX + n: shown(getattr(effective, n)) for n in SETTINGS
        }
        initial |= {
            "overload_policy": pool.overload_policy,
            "fallback_pool": pool.fallback_pool.slug if pool.fallback_pool else None,
            "description": pool.description,
        }
        return cls(pool=pool, initial=initial)

    def clean(self) -> dict[str, Any]:
        """Refuse settings out of range, each at its field."""
        data = super().clean() or {}
        for name, value in self.settings().items():
            if fault := pool_settings.fault_of(name, value):
                self.add_error(PREFIX + name, fault)
        if data.get("overload_policy") == "fallback" and not data.get("fallback_pool"):
            self.add_error("fallback_pool", "Choose the pool that takes over.")
        if not self.errors:
            self._check_together()
        return data

    def _check_together(self) -> None:
        try:
            pool_settings.resolved(self.settings())
        except Invalid as problem:
            self.add_problem(problem)

    def settings(self) -> dict[str, Any]:
        """Give the settings as typed values."""
        return {
            name: parsed(setting, str(self.cleaned_data.get(PREFIX + name, "")))
            for name, setting in SETTINGS.items()
        }

    def add_problem(self, problem: Invalid) -> None:
        """Show what a service refused at the field it names."""
        name = (problem.field or "").replace("settings.", PREFIX)
        self.add_error(name if name in self.fields else None, problem.message)

    def changes(self) -> dict[str, Any]:
        """Give what differs from the pool as it is, in the words of `services.update_pool`."""
        fallback = self.cleaned_data["fallback_pool"]
        wanted = {
            "overload_policy": self.cleaned_data["overload_policy"],
            "fallback_pool": fallback.slug if fallback else None,
            "description": self.cleaned_data["description"],
            "settings": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in pool_settings.overrides_of(self.settings()).items()
            },
        }
        return {name: value for name, value in wanted.items() if value != self._current(name)}

    def _current(self, name: str) -> Any:
        if name == "fallback_pool":
            return self.pool.fallback_pool.slug if self.pool.fallback_pool else None
        return getattr(self.pool, name)

    def differences(self) -> list[Difference]:
        """Give before → after, one line a change."""
        changes = self.changes()
        lines = [
            Difference(
                label=str(self.fields[name].label),
                before=shown(self._current(name)) or "none",
                after=shown(value) or "none",
            )
            for name, value in changes.items()
            if name != "settings"
        ]
        if "settings" in changes:
            lines += self._setting_differences()
        return lines

    def _setting_differences(self) -> Iterator[Difference]:
        before, _ = pool_settings.resolved_as_far_as_possible(self.pool.settings)
        for name, value in self.settings().items():
            if value != getattr(before, name):
                yield Difference(
                    label=str(self.fields[PREFIX + name].label),
                    before=shown(getattr(before, name)) or "none",
                    after=shown(value) or "none",
                )

    def warnings(self) -> tuple[str, ...]:
        """Give what is allowed but probably not meant."""
        if not self.is_bound or not self.is_valid():
            return ()
        return pool_settings.warnings(pool_settings.resolved(self.settings()))

    def groups(self) -> list[tuple[str, list[Any]]]:
        """Give the settings' fields by group, in the order of the table."""
        grouped: dict[str, list[Any]] = {}
        for name, setting in SETTINGS.items():
            grouped.setdefault(setting.group, []).append(self[PREFIX + name])
        return list(grouped.items())

    def general(self) -> list[Any]:
        """Give the fields that are not settings."""
        return [self[n] for n in ("overload_policy", "fallback_pool", "description")]
