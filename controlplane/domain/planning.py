"""How many replicas, how much memory, how many at once: step by step, each with its reason.

The steps are those of `planning_rules`. A step whose inputs are not all known is
there all the same, and names what it lacks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controlplane.domain.errors import Invalid
from controlplane.domain.planning_inputs import BY_NAME, Inputs
from controlplane.domain.planning_rules import RULES, Rule, Status, Values

_TITLES: Final = {rule.name: rule.title for rule in RULES}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One calculation: its formula, the formula with numbers, the result, what that means."""

    name: str
    title: str
    formula: str
    working: str = ""
    value: float | None = None
    unit: str = ""
    reason: str
    status: Status = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What comes of the inputs; `steps` are in the order in which they build on one another."""

    inputs: Inputs
    steps: tuple[Step, ...]

    def result(self, name: str) -> float | None:
        """Give a step's result by its name; None where it could not be calculated."""
        return next((s.value for s in self.steps if s.name == name), None)


def plan(inputs: Inputs) -> Plan:
    """Calculate every step whose inputs are known.

    Raises:
        Invalid: inputs contradict one another, or nothing at all can be calculated from them.
    """
    values: Values = {name: known.value for name, known in inputs.items()}
    steps = []
    for rule in RULES:
        step = _step(rule, values)
        if step.value is not None:
            values[rule.name] = step.value
        steps.append(step)
    if all(step.status == "missing" for step in steps):
        raise Invalid(
            "Nothing can be calculated from this. Name a model for its memory, a GPU too for"
            " concurrency, the peak and a replica's productivity for the number of replicas.",
            code="too_little",
        )
    return Plan(inputs=inputs, steps=tuple(steps))


def _step(rule: Rule, values: Values) -> Step:
    lacking = [_title(name) for name in rule.needs if name not in values]
    if lacking:
        reason = f"Not calculated, for want of {_listed(lacking)}."
        return Step(
            name=rule.name, title=rule.title, formula=rule.formula, unit=rule.unit,
            reason=reason, status="missing",
        )  # fmt: skip
    outcome = rule.work(values)
    return Step(
        name=rule.name,
        title=rule.title,
        formula=rule.formula,
        working=outcome.working,
        value=outcome.value,
        unit=rule.unit,
        reason=outcome.reason,
        status=outcome.status,
    )


def _title(name: str) -> str:
    label = BY_NAME[name].label if name in BY_NAME else _TITLES[name]
    return label if label[:2].isupper() else label[0].lower() + label[1:]


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
