"""A trace as a replay reads it, whatever its file looked like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from routing_agent.core.table import LOCAL_TENANT, SessionKind, session_hash


class TraceError(Exception):
    """A trace cannot be read; the message names the file, the line and what is wrong there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace: when it came, how long it was, what it shared with others."""

    at_s: float  # since the trace began
    prompt_tokens: int
    output_tokens: int
    session: int  # 64-bit hash, as the agent makes it of a tenant's session
    blocks: tuple[int, ...] = ()  # an equal id: an equal prompt up to the end of that block


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The requests of a trace in order of time."""

    name: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int | None = None  # tokens a block id stands for; None: nothing is known
    note: str = ""  # what a reader of results has to know

    @property
    def prompt_tokens(self) -> int:
        """All prompt tokens."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def duration_s(self) -> float:
        """Seconds from the first arrival to the last."""
        return self.requests[-1].at_s - self.requests[0].at_s if self.requests else 0.0

    def with_utilisation(self, wanted: float, capacity_tokens_per_s: float) -> Trace:
        """Stretch or squeeze time so that all prompts uncached would be this share of capacity."""
        if not self.duration_s:
            return self
        recorded = self.prompt_tokens / self.duration_s / capacity_tokens_per_s
        factor = recorded / wanted
        scaled = (replace(request, at_s=request.at_s * factor) for request in self.requests)
        return replace(self, requests=tuple(scaled))

    def with_block_tokens(self, block_tokens: int) -> Trace:
        """Give the same trace with ids for full blocks of `block_tokens`, no partial ones."""
        if self.block_tokens is None:
            return replace(self, block_tokens=block_tokens)
        larger = max(block_tokens, self.block_tokens)
        if larger % min(block_tokens, self.block_tokens):
            raise TraceError(
                f"{self.name}: its blocks have {self.block_tokens} tokens; blocks of "
                f"{block_tokens} cannot be made of them. Take a multiple or a divisor."
            )
        requests = tuple(
            replace(one, blocks=_regrouped(one, self.block_tokens, block_tokens))
            for one in self.requests
        )
        return replace(self, requests=requests, block_tokens=block_tokens)


def session_of(kind: SessionKind, *parts: object) -> int:
    """Hash what stands for a session in a trace, the way the agent hashes its sessions."""
    return session_hash(0, LOCAL_TENANT.name, kind, repr(parts).encode())


def in_order(requests: Iterable[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Sort by time; requests of the same moment keep their order."""
    return tuple(sorted(requests, key=lambda request: request.at_s))


def _regrouped(request: TraceRequest, old: int, new: int) -> tuple[int, ...]:
    full = request.prompt_tokens // new
    if new >= old:  # ids are chained: the last id of a group stands for the whole group
        group = new // old
        return request.blocks[group - 1 :: group][:full]
    parts = old // new
    split = (block * parts + part for block in request.blocks for part in range(parts))
    return tuple(split)[:full]
