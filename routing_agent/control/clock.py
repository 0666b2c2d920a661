"""The control plane's clock as this agent knows it, without trusting its own wall clock.

Signed calls carry the control plane's time and are good for a minute. The agent judges them by an
estimate: the difference between `server_time` in the replies to its reports and its own monotonic
clock. Stepping or skewing the wall clock therefore changes nothing.

Over a restart the difference is kept on disk. The monotonic clock goes on while the machine runs,
so within one boot the kept difference is exact. After a reboot the kept difference to the *wall*
clock is used instead, which cancels a constant skew; if the wall clock was also stepped meanwhile,
pushes are refused until the first report, two seconds later, has set the estimate right (and the
pull that follows it brings the table). With nothing kept at all the wall clock itself must do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from routing_agent.control.files import set_aside, write_durably

log = structlog.get_logger()

SAVE_AT_CHANGE_S = 1.0  # a drift below this is not worth a write
ROUND_TRIP_LIMIT_S = 5.0  # half of it bounds the error of an estimate; slower replies teach nothing
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Saved(msgspec.Struct, frozen=True):
    """What is kept on disk: the control plane's time minus each of our clocks."""

    boot_id: str
    ahead_of_monotonic_s: float
    ahead_of_wall_s: float


def this_boot() -> str:
    """Give an id that changes when the monotonic clock starts anew; empty where there is none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:  # not Linux: then every start counts as a new boot
        return ""


@dataclass
class ControlClock:
    """Estimates the control plane's Unix time."""

    path: Path | None = None
    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    boot_id: str = field(default_factory=this_boot)
    source: str = "wall"  # contact, kept, kept_wall or wall
    _ahead_s: float = field(init=False)
    _saved: Saved | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._ahead_s = self.wall() - self.monotonic()
        self._saved = self._load()
        if self._saved is None:
            return
        if self._saved.boot_id and self._saved.boot_id == self.boot_id:
            self._ahead_s, self.source = self._saved.ahead_of_monotonic_s, "kept"
        else:
            self._ahead_s += self._saved.ahead_of_wall_s
            self.source = "kept_wall"

    def now(self) -> float:
        """Give the control plane's time as well as it is known."""
        return self.monotonic() + self._ahead_s

    def learn(self, server_time: float, *, asked_at: float, answered_at: float) -> None:
        """Take the time of a reply; `asked_at` and `answered_at` are monotonic."""
        if answered_at - asked_at > ROUND_TRIP_LIMIT_S and self.source == "contact":
            return
        self._ahead_s = server_time - (asked_at + answered_at) / 2
        self.source = "contact"
        self._save()

    def _save(self) -> None:
        fresh = Saved(self.boot_id, self._ahead_s, self.now() - self.wall())
        if self.path is None or (self._saved is not None and _near(fresh, self._saved)):
            return
        try:
            write_durably(self.path, msgspec.json.encode(fresh))
        except OSError as error:
            log.warning("clock_not_saved", path=str(self.path), error=str(error))
            return
        self._saved = fresh

    def _load(self) -> Saved | None:
        if self.path is None or not self.path.exists():
            return None
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Saved)
        except (OSError, msgspec.MsgspecError) as error:
            aside = set_aside(self.path)
            log.warning("clock_file_unreadable", set_aside=str(aside), error=str(error))
            return None


def _near(a: Saved, b: Saved) -> bool:
    return (
        a.boot_id == b.boot_id
        and abs(a.ahead_of_monotonic_s - b.ahead_of_monotonic_s) < SAVE_AT_CHANGE_S
        and abs(a.ahead_of_wall_s - b.ahead_of_wall_s) < SAVE_AT_CHANGE_S
    )
