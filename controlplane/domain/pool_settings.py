"""A pool's settings: what each one is, which values it may have, and whether they fit together.

Names, types, ranges and defaults come from `routing_agent.wire.PoolSettings`, words from `TEXTS`;
the console, the API and the documentation show both from here and keep no list of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import inspect

from controlplane.domain.errors import Invalid
from controlplane.domain.pool_setting_texts import TEXTS
from routing_agent.core.paths import extra_path_fault
from routing_agent.wire import PoolSettings

# How long a long answer takes: 1,024 tokens at the 33.3 ms a token of the default TPOT objective.
EXPECTED_GENERATION_S: Final = 1024 * 0.0333

# Pairs whose first must not exceed the second.
_ORDERED: Final = (
    ("kv_soft_usage", "kv_hard_usage"),
    ("scrape_interval_s", "scrape_stale_s"),
    ("scrape_stale_s", "scrape_dead_s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as the console, the API and the documentation show it."""

    name: str
    group: str
    label: str
    unit: str
    default: Any
    allowed: str
    help: str
    choices: tuple[str, ...] = ()
    kind: str = "number"  # number, whole, choice, text, list
    optional: bool = False  # may be None


def _kind_of(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    """Give the type without `| None`, and whether None was allowed."""
    if isinstance(kind, inspect.UnionType):
        return next(t for t in kind.types if not isinstance(t, inspect.NoneType)), True
    return kind, False


def _range_of(kind: inspect.IntType | inspect.FloatType) -> str:
    noun = "a whole number" if isinstance(kind, inspect.IntType) else "a number"
    if kind.gt is not None:
        low = f"above {kind.gt:g}"
    elif kind.ge is not None and kind.le is not None:
        return f"{noun} from {kind.ge:g} to {kind.le:g}"
    else:
        low = f"of at least {kind.ge:g}" if kind.ge is not None else "of any size"
    return f"{noun} {low}" + (f", at most {kind.le:g}" if kind.le is not None else "")


def _describe(field: inspect.Field) -> Setting:
    group, label, unit, text = TEXTS[field.name]
    kind, optional = _kind_of(field.type)
    choices: tuple[str, ...] = ()
    if isinstance(kind, inspect.LiteralType):
        choices = tuple(str(v) for v in kind.values)
        allowed, word = "one of " + ", ".join(choices), "choice"
    elif isinstance(kind, (inspect.IntType, inspect.FloatType)):
        allowed = _range_of(kind)
        word = "whole" if isinstance(kind, inspect.IntType) else "number"
    elif isinstance(kind, inspect.StrType):
        allowed, word = "tcp://HOST:PORT or ipc:///PATH, or empty", "text"
    else:
        allowed, word = "a list of paths such as /v1/audio/speech", "list"
    return Setting(
        name=field.name,
        group=group,
        label=label,
        unit=unit,
        default=getattr(_DEFAULTS, field.name),
        allowed=f"{allowed}, or empty" if optional else allowed,
        help=text,
        choices=choices,
        kind=word,
        optional=optional,
    )


_DEFAULTS: Final = PoolSettings()
SETTINGS: Final[Mapping[str, Setting]] = {
    field.name: _describe(field)
    for field in inspect.type_info(PoolSettings).fields  # type: ignore[attr-defined]
}


def fault_of(name: str, value: Any) -> str:
    """Say what is wrong with one override, naming what is allowed; "" if nothing."""
    setting = SETTINGS.get(name)
    if setting is None:
        return f"There is no pool setting {name!r}; the settings are {', '.join(SETTINGS)}."
    if isinstance(value, float) and not math.isfinite(value):
        return f"{name} must be {setting.allowed}, not {value}."
    try:
        checked = msgspec.convert({name: value}, PoolSettings)
    except msgspec.ValidationError:
        return f"{name} must be {setting.allowed}, not {value!r}."
    for path in checked.extra_paths:
        if fault := extra_path_fault(path):
            return f"{name} may not contain {path!r}: it {fault}."
    return ""


def resolved(overrides: Mapping[str, Any]) -> PoolSettings:
    """Give a pool's effective settings.

    Raises:
        Invalid: naming the first setting at fault and what is allowed.
    """
    for name, value in overrides.items():
        if fault := fault_of(name, value):
            raise Invalid(fault, code="invalid_setting", field=f"settings.{name}")
    settings = msgspec.convert(dict(overrides), PoolSettings)
    for low, high in _ORDERED:
        if getattr(settings, low) > getattr(settings, high):
            raise Invalid(
                f"{low} ({getattr(settings, low):g}) must not exceed"
                f" {high} ({getattr(settings, high):g}).",
                code="invalid_setting",
                field=f"settings.{low}",
            )
    return settings


def resolved_as_far_as_possible(
    overrides: Mapping[str, Any],
) -> tuple[PoolSettings, tuple[str, ...]]:
    """Give a pool's effective settings with faulty overrides left out, and what was wrong.

    A table must come out even if a row is wrong: then the default stands for the faulty override.
    """
    faults = {name: fault_of(name, value) for name, value in overrides.items()}
    good = {name: value for name, value in overrides.items() if not faults[name]}
    problems = tuple(fault for fault in faults.values() if fault)
    try:
        return resolved(good), problems
    except Invalid as error:
        return _DEFAULTS, (*problems, f"{error.message} All settings are at their defaults.")


def overrides_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give what differs from the defaults: the only thing worth storing."""
    return {
        name: value
        for name, value in values.items()
        if name not in SETTINGS or value != SETTINGS[name].default
    }


def warnings(
    settings: PoolSettings, *, expected_generation_s: float = EXPECTED_GENERATION_S
) -> tuple[str, ...]:
    """Say what is allowed but probably not meant."""
    found = []
    least = settings.ttft_limit_s + expected_generation_s
    if settings.end_to_end_limit_s < least:
        found.append(
            f"end_to_end_limit_s ({settings.end_to_end_limit_s:g} s) is below the TTFT limit"
            f" ({settings.ttft_limit_s:g} s) plus an expected generation"
            f" ({expected_generation_s:.0f} s): healthy long answers would be cut."
            f" Set it to at least {math.ceil(least)} s."
        )
    if settings.probe_timeout_s > settings.probe_interval_s:
        found.append(
            f"probe_timeout_s ({settings.probe_timeout_s:g} s) is above probe_interval_s"
            f" ({settings.probe_interval_s:g} s): a hanging replica is noticed late."
        )
    return tuple(found)
