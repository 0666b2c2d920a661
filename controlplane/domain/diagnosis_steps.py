"""What a diagnosis looks at, and how it answers: evidence in, steps out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from controlplane.domain.amounts import noun_of, three
from controlplane.domain.rollups import Figures

MORE_REQUESTS: Final = 1.3  # times as many, or as many at once

Verdict = Literal["yes", "no", "no data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a diagnosis looks at; None where nothing is known."""

    now: Figures | None
    before: Figures | None
    replicas: Mapping[str, Figures] = field(default_factory=dict)  # now, by public id
    ready: int = 0
    live: int = 0  # replicas that serve, or should
    tpot_promised_s: float = 0.0
    utilization: float | None = None
    kv_usage_max: float | None = None
    kv_capacity_tokens: int | None = None  # of one replica
    max_running: int | None = None  # requests that one replica computes at once
    context_tokens: int | None = None
    kv_dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One question: what was looked at, now and before, and the answer."""

    name: str
    title: str
    now: str = "—"
    before: str = "—"
    verdict: Verdict
    reason: str
    cause: str = ""  # of a yes: the sentence that names the cause
    remedy: str = ""
    explained_by: str = ""  # a later step that is the cause of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answers in their order, and the first cause in a sentence."""

    question: str
    title: str
    steps: tuple[Step, ...]
    cause: str
    remedy: str
    cause_step: str  # its name; empty: none found


def unknown(
    name: str, title: str, now: float | None, before: float | None, unit: str, why: str
) -> Step:
    """Give the step of a question that has no answer for want of a figure."""
    missing = "now" if now is None else "before"
    return Step(
        name=name,
        title=title,
        now=_plain(now, unit),
        before=_plain(before, unit),
        verdict="no data",
        reason=f"Not known {missing}: {why}.",
    )


def _plain(value: float | None, unit: str) -> str:
    if value is None:
        return "—"
    if unit == "%":
        return f"{value * 100:.0f} %"
    return (
        f"{value * 1000:.1f} ms"
        if unit == "s"
        else f"{three(value)} {noun_of(value, unit)}".strip()
    )
