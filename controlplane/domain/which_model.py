"""Rules that say which model answers: read from what is stored, and what they saved. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from controlplane.domain.errors import Invalid
from routing_agent import wire
from routing_agent.core.complexity import FEATURES

CASCADE_PATHS: Final = ("cascade", "escalated", "direct")
_Rule = TypeVar("_Rule", bound=wire.Message)


def complexity_of(raw: Any) -> wire.ComplexityRule | None:
    """Read a stored rule of classes; None without one.

    Raises:
        Invalid: at field `complexity`, saying what is wrong.
    """
    rule = _read(raw, wire.ComplexityRule, "complexity")
    if rule is None:
        return None
    unknown = sorted(set(rule.weights) - set(FEATURES))
    if unknown:
        known = ", ".join(FEATURES)
        raise Invalid(f"There is no feature {unknown[0]!r}: known are {known}.", field="complexity")
    bounds = [one.below for one in rule.classes]
    names = [one.name for one in rule.classes]
    if not bounds or bounds[-1] is not None or None in bounds[:-1]:
        raise Invalid(
            "Every class but the last has a bound `below`; the last takes the rest.",
            field="complexity",
        )
    rising = [b for b in bounds if b is not None]
    if sorted(set(rising)) != rising:
        raise Invalid("The bounds of the classes rise from one to the next.", field="complexity")
    if len(set(names)) != len(names) or not all(_is_word(name) for name in names):
        raise Invalid(
            "Classes have different names of 1 to 40 letters, digits and hyphens.",
            field="complexity",
        )
    if clash := set(names) & {*CASCADE_PATHS, "shape"}:
        raise Invalid(f"The class name {min(clash)!r} is taken.", field="complexity")
    return rule


def cascade_of(raw: Any) -> wire.CascadeRule | None:
    """Read a stored cascade; None without one.

    Raises:
        Invalid: at field `cascade`, saying what is wrong.
    """
    rule = _read(raw, wire.CascadeRule, "cascade")
    if rule is not None and rule.min_mean_logprob is not None and rule.min_mean_logprob > 0:
        raise Invalid("A mean log-probability is 0 at most.", field="cascade")
    return rule


def targets(complexity: wire.ComplexityRule | None, cascade: wire.CascadeRule | None) -> set[str]:
    """Give the models that rules send requests to."""
    classes = () if complexity is None else complexity.classes
    return {one.model for one in classes} | (set() if cascade is None else {cascade.to})


def _read(raw: Any, kind: type[_Rule], name: str) -> _Rule | None:
    if raw is None:
        return None
    _refuse_unknown(raw, kind, name)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as fault:
        raise Invalid(f"{name}: {fault}.", field=name) from fault


def _refuse_unknown(raw: Any, kind: type[Any], name: str) -> None:
    if not isinstance(raw, dict):
        raise Invalid(f"{name} is an object or null.", field=name)
    known = set(kind.__struct_fields__)
    if unknown := sorted(set(map(str, raw)) - known):
        raise Invalid(
            f"{name} has no {unknown[0]!r}: known are {', '.join(sorted(known))}.", field=name
        )


def _is_word(name: str) -> bool:
    return 1 <= len(name) <= 40 and name.replace("-", "").isalnum() and name.isascii()


@dataclass(slots=True, kw_only=True)
class PathLine:
    """How often a model's requests took one path, over all agents since each began."""

    path: str
    answered_by: str
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    wasted_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class ModelPaths:
    """All paths of one model."""

    model: str
    lines: list[PathLine] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """Give the requests that a rule decided; shapes are counted apart."""
        return sum(line.requests for line in self.lines if line.path != "shape")

    def saved(self, largest: str | None) -> int | None:
        """Give the tokens that `largest` did not have to write, less those written twice.

        None where nothing says which model would have answered otherwise.
        """
        decided = [line for line in self.lines if line.path != "shape"]
        if largest is None or not decided:
            return None
        spared = sum(line.output_tokens for line in decided if line.answered_by != largest)
        return spared - sum(line.wasted_tokens for line in decided)


def add_up(told: Iterable[wire.ModelPath]) -> Mapping[str, ModelPaths]:
    """Add what agents tell up, by model; the busiest path first."""
    sums: dict[tuple[str, str, str], PathLine] = {}
    for one in told:
        key = (one.model, one.path, one.answered_by)
        line = sums.setdefault(key, PathLine(path=one.path, answered_by=one.answered_by))
        line.requests += one.requests
        line.prompt_tokens += one.prompt_tokens
        line.output_tokens += one.output_tokens
        line.wasted_tokens += one.wasted_tokens
    found: dict[str, ModelPaths] = {}
    for (model, _, _), line in sorted(sums.items(), key=lambda item: -item[1].requests):
        found.setdefault(model, ModelPaths(model=model)).lines.append(line)
    return found


def largest_of(
    complexity: wire.ComplexityRule | None, cascade: wire.CascadeRule | None
) -> str | None:
    """Give the model that would answer without the rule: a cascade's end, else the last class's."""
    if cascade is not None:
        return cascade.to
    return complexity.classes[-1].model if complexity is not None and complexity.classes else None
