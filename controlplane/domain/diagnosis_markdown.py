"""A diagnosis as Markdown, for a ticket or a chat. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from controlplane.domain.diagnosis_steps import Diagnosis

Change = tuple[datetime, str, str, str, str]  # when, who, what, on what, why


def as_markdown(
    pool: str,
    told: Diagnosis,
    *,
    columns: tuple[str, str],
    at: datetime,
    alert: str = "",
    changes: Sequence[Change] = (),
) -> str:
    """Write a diagnosis down with the figures it rests on.

    Args:
        columns: what "now" and "before" are.
        at: when it was looked at; told in UTC, since the reader may be anywhere.
        alert: what fires, in its own words.
    """
    lines = [f"## {told.title}: {pool}", ""]
    if alert:
        lines += [f"Alert: {_flat(alert)}", ""]
    lines += [
        f"**{_flat(told.cause)}** {_flat(told.remedy)}",
        "",
        *_table(
            (
                "Looked at",
                f"Now ({_flat(columns[0])})",
                f"Before ({_flat(columns[1])})",
                "It?",
                "Why",
            ),
            ((s.title, s.now, s.before, s.verdict, s.reason) for s in told.steps),
        ),
        "",
        "What changed:" if changes else "Nothing is known to have changed.",
    ]
    for when, who, verb, target, why in changes:
        lines.append(f"- {when:%H:%M:%S} {who} {verb} {target}: {_flat(why) or '—'}")
    return "\n".join([*lines, "", f"Looked at {at:%Y-%m-%d %H:%M:%S} UTC.", ""])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    marked = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(_flat(cell).replace('|', '¦') for cell in row)} |" for row in marked]


def _flat(text: str) -> str:
    """Keep a text on one line."""
    return " ".join(text.split())
