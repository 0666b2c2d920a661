"""How far an adapter is, in one word and one sentence, and what sharing base models saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from controlplane.domain.amounts import counted
from controlplane.domain.placement import LeftOut
from routing_agent.wire import AdapterStage

# Older words of an agent say what was, not what is.
STALE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnReplica:
    """What is known of an adapter on one replica."""

    replica: str
    stage: AdapterStage | None = None  # None: its agent has said nothing of it
    message: str = ""
    heard_s_ago: float | None = None  # None: its agent was never heard

    @property
    def is_stale(self) -> bool:
        """Say whether its agent has been silent too long to believe this."""
        return self.heard_s_ago is None or self.heard_s_ago > STALE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an adapter is."""

    code: Literal["serving", "degraded", "loading", "failed", "stale", "unplaced", "deleting"]
    loaded: int
    wanted: int
    said: str


def progress(
    on: Sequence[OnReplica],
    *,
    is_deleted: bool = False,
    left_out: Sequence[LeftOut] = (),
    planned: int = 0,
) -> Progress:
    """Say how far an adapter is.

    Args:
        on: the replicas that are to hold it; of a deleted one, those that still do.
        left_out: replicas of its model that do not get it, with the reasons.
        planned: replicas that are to hold it by the newest plan, told to its agents or not yet.
    """
    loaded = [told for told in on if told.stage == "loaded" and not told.is_stale]
    if is_deleted:
        code: str = "deleting"
        said = f"still on {counted(len(on), 'replicas')}" if on else "no replica holds it any more"
    elif not on and planned:
        code, said = (
            "loading",
            f"0 of {counted(planned, 'replicas')}; their agents are about to be told",
        )
    elif not on:
        code = "unplaced"
        said = left_out[0].reason if left_out else "no replica of its model serves or is starting"
    else:
        code, said = _code_of(on, len(loaded)), f"{len(loaded)} of {counted(len(on), 'replicas')}"
        said += _faults(on)
    return Progress(code=code, loaded=len(loaded), wanted=len(on) or planned, said=said)  # type: ignore[arg-type]


def _code_of(on: Sequence[OnReplica], loaded: int) -> str:
    if loaded == len(on):
        return "serving"
    if any(told.stage == "failed" for told in on):
        return "degraded" if loaded else "failed"
    if all(told.is_stale for told in on if told.stage != "loaded" or told.is_stale):
        return "stale"
    return "loading"


def _faults(on: Sequence[OnReplica]) -> str:
    failed = [told for told in on if told.stage == "failed"]
    silent = [told for told in on if told.is_stale]
    said = ""
    if failed:
        said += f"; {failed[0].replica}: {failed[0].message or 'failed'}"
    if len(failed) > 1:
        said += f" (and {len(failed) - 1} more)"
    if silent:
        said += f"; nothing heard of {len(silent)}"
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What the adapters of one base model take, and what they would take apart."""

    model: str
    adapters: int  # loaded somewhere
    replicas: int  # that hold at least one
    bytes_at_most: int  # of the adapters on the fullest replica
    weight_bytes: int | None  # of the base model; None: its version does not say

    @property
    def replicas_saved(self) -> int:
        """Give how many more replicas it would take to give each adapter one of its own."""
        return max(0, self.adapters - self.replicas)

    @property
    def memory_ratio(self) -> float | None:
        """Give the adapters' memory on the fullest replica over that of the base, 0 to 1."""
        return self.bytes_at_most / self.weight_bytes if self.weight_bytes else None


def sharing(
    model: str, loaded: Sequence[tuple[str, str, int]], *, weight_bytes: int | None
) -> Sharing:
    """Add up what is loaded: (replica, adapter, bytes), once for each version on a replica."""
    on_each: dict[str, int] = {}
    for replica, _, size_bytes in loaded:
        on_each[replica] = on_each.get(replica, 0) + size_bytes
    return Sharing(
        model=model,
        adapters=len({adapter for _, adapter, _ in loaded}),
        replicas=len(on_each),
        bytes_at_most=max(on_each.values(), default=0),
        weight_bytes=weight_bytes,
    )
