"""What happened: single notices put together into lines that a person reads. Pure.

An outage is noticed several times: by each loop that runs again and by each agent that is heard
again. Notices whose times overlap are one outage and one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

LOOP_RESUMED: Final = "loop.resumed"
HEARD_AGAIN: Final = "agent.heard_again"
RESTARTED: Final = "agent.restarted"
HALT, ADOPT = "routing.halt", "routing.adopt"
EJECT, RESTORE = "replica.eject", "replica.restore"
OUTAGES = frozenset({LOOP_RESUMED, HEARD_AGAIN})
ENDS = {ADOPT: HALT, RESTORE: EJECT}  # what ends a trouble, and which one
VERBS = (LOOP_RESUMED, HEARD_AGAIN, RESTARTED, HALT, ADOPT, EJECT, RESTORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One audit event of the machinery: what was noticed, of whom, and for what time."""

    verb: str
    subject: str  # a loop, a node, a replica, or the publication
    at: datetime
    since: datetime
    reason: str = ""
    restarted: bool = False
    table_source: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One line; `until` is None while it goes on or when it took no time."""

    what: str
    why: str = ""
    since: datetime
    until: datetime | None = None

    @property
    def duration_s(self) -> float | None:
        """Say how long it lasted."""
        return (self.until - self.since).total_seconds() if self.until else None


def told(notices: Iterable[Notice]) -> list[Happening]:
    """Give the lines, the newest first."""
    ordered = sorted(notices, key=lambda n: (n.since, n.at))
    lines = [_outage(group) for group in _overlapping([n for n in ordered if n.verb in OUTAGES])]
    lines += _troubles([n for n in ordered if n.verb in {*ENDS, *ENDS.values()}])
    lines += [_restart(n) for n in ordered if n.verb == RESTARTED]
    return sorted(lines, key=lambda line: line.until or line.since, reverse=True)


def _overlapping(notices: Sequence[Notice]) -> list[list[Notice]]:
    """Put notices together whose times overlap; they come in the order of their beginnings."""
    groups: list[list[Notice]] = []
    for notice in notices:
        if groups and notice.since <= max(n.at for n in groups[-1]):
            groups[-1].append(notice)
        else:
            groups.append([notice])
    return groups


def _outage(group: list[Notice]) -> Happening:
    loops = [n for n in group if n.verb == LOOP_RESUMED]
    agents = [n for n in group if n.verb == HEARD_AGAIN]
    if loops and agents:
        what, why = "Control plane away", _what_agents_did(agents)
    elif loops:
        names = _listed([n.subject for n in loops])
        what, why = f"{names} stood still", "worker, beat or Redis was away; agents were heard"
    else:
        what = f"Agent on {_listed([n.subject for n in agents])} not heard"
        why = _what_agents_did(agents)
    since, until = min(n.since for n in group), max(n.at for n in group)
    return Happening(what=what, why=why, since=since, until=until)


def _what_agents_did(agents: Sequence[Notice]) -> str:
    """Say who went on serving with which table, and who was restarted meanwhile."""
    steady = [n for n in agents if not n.restarted]
    said = []
    if steady:
        epochs = _listed([str(e) for e in sorted({n.epoch for n in steady})])
        who = "agents" if len(steady) == len(agents) > 1 else _listed([n.subject for n in steady])
        said.append(f"{who} went on with epoch {epochs}")
    said += [f"{n.subject} restarted {_source(n)}" for n in agents if n.restarted]
    return "; ".join(said)


def _source(notice: Notice) -> str:
    if notice.table_source in {"push", "pull"}:
        return f"and got epoch {notice.epoch} by {notice.table_source}"
    return "from its disk table" if notice.table_source == "disk" else "without a table"


def _restart(notice: Notice) -> Happening:
    return Happening(
        what=f"Agent on {notice.subject} restarted", why=_source(notice), since=notice.at
    )


def _troubles(notices: Sequence[Notice]) -> list[Happening]:
    """Give halts and ejections, each with its end where there is one."""
    begun: dict[tuple[str, str], Notice] = {}
    lines: list[Happening] = []
    for notice in sorted(notices, key=lambda n: n.at):
        beginning = begun.pop((ENDS.get(notice.verb, ""), notice.subject), None)
        if notice.verb not in ENDS:
            begun[notice.verb, notice.subject] = notice
        elif beginning is not None:
            lines.append(_trouble(beginning, notice))
        else:
            lines.append(_end_alone(notice))
    return lines + [_trouble(n, None) for n in begun.values()]


def _trouble(beginning: Notice, end: Notice | None) -> Happening:
    what = f"Replica {beginning.subject} ejected for its health"
    if beginning.verb == HALT:
        what = "Publishing halted"
    if end is not None:
        what += ", then adopted" if end.verb == ADOPT else ", then back"
    return Happening(
        what=what, why=beginning.reason, since=beginning.at, until=end.at if end else None
    )


def _end_alone(notice: Notice) -> Happening:
    is_adopted = notice.verb == ADOPT
    what = "Publishing went on" if is_adopted else f"Replica {notice.subject} back"
    return Happening(what=what, why=notice.reason, since=notice.at)


def _listed(names: Sequence[str]) -> str:
    """Give `a`, `a and b`, or `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
