"""Guided diagnosis: fixed questions, each answered by figures now and before. Pure.

The order of a diagnosis is fixed, so that two people who look at the same pool say the same thing:
TTFT is up: input lengths, then queue depth, then hit rate, then what stands behind a queue.
The first answer of yes is the cause, unless a later one explains it.
"""

from __future__ import annotations

from typing import Final

from controlplane.domain.diagnosis_engines import gpu_low_steps, oom_steps
from controlplane.domain.diagnosis_steps import Diagnosis, Evidence, Step
from controlplane.domain.diagnosis_ttft import ttft_steps

TITLES: Final = {
    "ttft": "TTFT is up",
    "gpu-low": "GPU use is low",
    "oom": "Memory is short",
}


def diagnose(question: str, seen: Evidence) -> Diagnosis:
    """Answer one of the questions of `TITLES`."""
    steps = {"ttft": ttft_steps, "gpu-low": gpu_low_steps, "oom": oom_steps}[question](seen)
    found = _cause(steps)
    missing = [s.title.lower() for s in steps if s.verdict == "no data"]
    if found is None:
        cause = "None of these is the cause."
        if missing:
            cause = f"No cause found; there is no data on {', '.join(missing)}."
        return Diagnosis(
            question=question,
            title=TITLES[question],
            steps=steps,
            cause=cause,
            remedy="Look at the pool's charts and at what changed.",
            cause_step="",
        )
    return Diagnosis(
        question=question,
        title=TITLES[question],
        steps=steps,
        cause=found.cause,
        remedy=found.remedy,
        cause_step=found.name,
    )


def _cause(steps: tuple[Step, ...]) -> Step | None:
    by_name = {s.name: s for s in steps}
    first = next((s for s in steps if s.verdict == "yes"), None)
    while first is not None and first.explained_by:
        first = by_name[first.explained_by]
    return first
