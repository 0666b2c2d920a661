"""The life of a request as a page shows it: stages on a line, each beside its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from routing_agent import wire

FAILED_FROM: Final = 500
LINE_UNITS: Final = 1000  # the width of the bar
LEAST_UNITS: Final = 3  # what has no length can still be seen
# Further from now than an agent could have kept records: its clock was wrong, now is nearer.
LONGEST_DELAY: Final = timedelta(days=31)

BUDGET_NOTE: Final = (
    "Budgets are those published for a 7B model with 512 tokens in: network 5 ms, balancing and "
    "queue 80 ms, scheduling in the engine 20 ms, prefill 120 ms, decode 25 ms a token."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLine:
    """One stage: where it lies on the bar, how long it took, what it may take."""

    stage: str
    began_s: float  # since the request was received
    duration_s: float
    estimated: bool
    reason: str
    budget_s: float | None
    x: int
    width: int

    @property
    def is_over(self) -> bool:
        """Say whether it took longer than its budget."""
        return self.budget_s is not None and self.duration_s > self.budget_s


def stage_lines(record: wire.RequestRecord) -> list[StageLine]:
    """Give a request's stages with their places on a bar of `LINE_UNITS`."""
    total_s = max(record.e2e_s, sum(stage.duration_s for stage in record.stages), 1e-9)
    lines = []
    began_s = 0.0
    for stage in record.stages:
        x = min(round(LINE_UNITS * began_s / total_s), LINE_UNITS - LEAST_UNITS)
        width = max(round(LINE_UNITS * stage.duration_s / total_s), LEAST_UNITS)
        lines.append(
            StageLine(
                stage=stage.stage,
                began_s=began_s,
                duration_s=stage.duration_s,
                estimated=stage.estimated,
                reason=_plain(stage.reason),
                budget_s=budget_s(stage.stage, record, record.stages),
                x=x,
                width=min(width, LINE_UNITS - x),
            )
        )
        began_s += stage.duration_s
    return lines


def _plain(reason: str) -> str:
    """Write a reason that is only a code, as of a refusal, in words."""
    return reason.replace("_", " ") if reason.replace("_", "").isalpha() else reason


def budget_s(
    stage: str, record: wire.RequestRecord, stages: Sequence[wire.StageRecord]
) -> float | None:
    """Give what a stage may take; None where nothing is promised."""
    if stage in ("RECEIVED", "QUEUED"):
        return wire.BUDGET_QUEUE_S
    if stage == "BOUND":
        return wire.BUDGET_NETWORK_S
    decode_s = wire.BUDGET_DECODE_TOKEN_S * max(record.output_tokens - 1, 0)
    if stage == "PREFILL":
        # A plain answer comes in one piece: its decoding cannot be told from its prefill.
        decodes_unseen = not any(other.stage == "DECODE" for other in stages)
        prefill_s = wire.BUDGET_SCHEDULING_S + wire.BUDGET_PREFILL_S
        return prefill_s + decode_s if decodes_unseen else prefill_s
    return decode_s if stage == "DECODE" else None


def moment(at: float, *, now: datetime) -> datetime:
    """Give Unix seconds as a time; now, if an agent's clock was far off."""
    try:
        found = datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return now
    return now if abs(found - now) > LONGEST_DELAY else found
