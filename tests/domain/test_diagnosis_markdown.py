"""A diagnosis that is pasted elsewhere says all that its page said."""

from __future__ import annotations

from datetime import UTC, datetime

from controlplane.domain.diagnosis_markdown import as_markdown
from controlplane.domain.diagnosis_steps import Diagnosis, Step

AT = datetime(2026, 11, 30, 8, 45, 3, tzinfo=UTC)
TOLD = Diagnosis(
    question="ttft",
    title="TTFT is up",
    steps=(
        Step(name="a", title="Inputs", now="1|2", before="3", verdict="no", reason="the\nsame"),
        Step(name="b", title="One replica", now="9 s", verdict="yes", reason="far off"),
    ),
    cause="rpl-1 is slow.",
    remedy="Drain it.",
    cause_step="b",
)


def test_it_has_the_cause_every_figure_and_what_changed():
    changed = (AT, "olga", "replica.drain", "rpl-1", "")
    text = as_markdown(
        "chat", TOLD, columns=("5 m", "an hour ago"), at=AT, alert="9 s", changes=[changed]
    )
    assert text.startswith("## TTFT is up: chat\n\nAlert: 9 s\n\n**rpl-1 is slow.** Drain it.\n")
    assert "| Looked at | Now (5 m) | Before (an hour ago) | It? | Why |" in text
    assert "| Inputs | 1¦2 | 3 | no | the same |" in text
    assert "- 08:45:03 olga replica.drain rpl-1: —" in text
    assert text.endswith("Looked at 2026-11-30 08:45:03 UTC.\n")


def test_without_alert_and_changes_it_says_so():
    text = as_markdown("chat", TOLD, columns=("now", "before"), at=AT)
    assert "Alert" not in text
    assert "Nothing is known to have changed." in text
