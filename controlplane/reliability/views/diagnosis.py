"""Diagnosis: what is the cause? The fixed steps with figures now and before, and what changed."""

from __future__ import annotations

from typing import Any

from controlplane.console.mixins import Page
from controlplane.domain.diagnosis import TITLES
from controlplane.domain.diagnosis_markdown import as_markdown
from controlplane.domain.errors import Invalid
from controlplane.reliability.selectors import diagnosis


class DiagnosisPage(Page):
    """One question about one pool."""

    template_name = "reliability/diagnosis.html"
    fragment_name = "reliability/_diagnosis.html"
    nav_name = "alerts"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Look at the pool."""
        asked, question = self.request.GET.get("alert", ""), self.request.GET.get("question")
        if asked and not (asked.isascii() and asked.isdigit() and len(asked) < 19):
            raise Invalid("alert is the id of an alert.", field="alert")
        pool = kwargs["slug"]
        found = diagnosis.diagnose(pool, question or "ttft", int(asked) if asked else None)
        return super().get_context_data(**kwargs) | {
            "title": f"Diagnosis of {pool}",
            "api_path": f"/api/v1/diagnoses/{pool}/?question={found.diagnosis.question}",
            "found": found,
            "markdown": markdown(found),
            "questions": TITLES.items(),
        }


def markdown(found: diagnosis.Finding) -> str:
    """Write a finding down as somebody would paste it into a ticket."""
    return as_markdown(
        found.pool,
        found.diagnosis,
        columns=(found.now_is, found.before_is),
        at=found.at,
        alert=found.alert.reason if found.alert else "",
        changes=[(e.at, e.actor, e.verb, e.target, e.reason) for e in found.changes],
    )
