"""Fault switches of a simulated engine: what goes wrong, for which share of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Share = Annotated[float, Meta(gt=0, le=1)]


class Fail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Answer with an error status instead of working."""

    status: Annotated[int, Meta(ge=400, le=599)] = 500
    ratio: Share = 1.0


class Hang(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Accept and never answer; with `after_tokens`, stop in the middle of the answer."""

    after_tokens: Annotated[int, Meta(ge=1)] | None = None
    ratio: Share = 1.0


class Crash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exit the process at once, or reset connections (with `after_tokens`: in mid-answer)."""

    how: Literal["exit", "reset"] = "exit"
    after_tokens: Annotated[int, Meta(ge=1)] | None = None
    ratio: Share = 1.0

    @property
    def exits_now(self) -> bool:
        """Whether the process ends without waiting for a request."""
        return self.how == "exit" and self.after_tokens is None


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Every switch; the default is an engine in good health."""

    fail: Fail | None = None
    hang: Hang | None = None
    crash: Crash | None = None
    slow: Annotated[float, Meta(ge=0.01, le=10_000)] = 1.0
    unhealthy: bool = False
    asleep: bool = False


USAGE = (
    "Known switches: fail {status, ratio}, hang {after_tokens, ratio}, "
    'crash {how: "exit" or "reset", after_tokens, ratio}, slow FACTOR, unhealthy true, '
    "asleep true; null turns a switch off, DELETE clears all."
)


class InvalidFaults(ValueError):
    """The switches asked for make no sense; the message says which and what would."""


def merged(current: Faults, body: bytes) -> Faults:
    """Give `current` with the switches named in a JSON object changed, or raise `InvalidFaults`."""
    try:
        asked = msgspec.json.decode(body or b"{}", type=dict[str, msgspec.Raw])
        if not asked:
            raise InvalidFaults(f"no switch given. {USAGE}")
        state = msgspec.to_builtins(current)
        state |= {name: msgspec.json.decode(value) for name, value in asked.items()}
        for name in ("slow", "unhealthy", "asleep"):  # null is off for these too
            if state.get(name, ...) is None:
                del state[name]
        return msgspec.convert(state, Faults)
    except msgspec.MsgspecError as problem:
        raise InvalidFaults(f"{problem}. {USAGE}") from problem


@dataclass(slots=True)
class Shares:
    """Picks exactly the asked share of requests, evenly spaced: no luck in a drill."""

    _owed: dict[str, float] = field(default_factory=dict)

    def picks(self, switch: str, ratio: float) -> bool:
        """Say whether this request is one of the share."""
        owed = self._owed.get(switch, 0.0) + ratio
        hit = owed >= 1.0 - 1e-9
        self._owed[switch] = owed - 1.0 if hit else owed
        return hit


@dataclass(frozen=True, slots=True)
class Fate:
    """What the switches do to one request."""

    fail_status: int | None = None
    hang: bool = False
    crash: Literal["exit", "reset"] | None = None
    after_tokens: int | None = None  # `None`: before anything is answered


WELL = Fate()


def fate(faults: Faults, shares: Shares) -> Fate:
    """Decide what happens to the next request."""
    if faults.fail and shares.picks("fail", faults.fail.ratio):
        return Fate(fail_status=faults.fail.status)
    if faults.hang and shares.picks("hang", faults.hang.ratio):
        return Fate(hang=True, after_tokens=faults.hang.after_tokens)
    if faults.crash and shares.picks("crash", faults.crash.ratio):
        return Fate(crash=faults.crash.how, after_tokens=faults.crash.after_tokens)
    return WELL
