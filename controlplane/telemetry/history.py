"""Reads roll-ups back as figures step by step; a step without a row is a gap."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from django.db.models import Sum

from controlplane.domain import rollups
from controlplane.domain.rollups import Figures
from controlplane.telemetry.models import MemberRollUp, RollUp, RollUpState
from controlplane.telemetry.snapshots import HOUR_S, HOURS, MINUTE_S, MINUTES, Window

SHARDS = 32
Frames = list[Figures | None]
Reader = Callable[[], Frames]


def source_of(window: Window) -> str:
    """Name what a window's figures are read from."""
    return HOURS if window.base_s == HOUR_S else MINUTES


def frames(level: str, subject: str, window: Window) -> Frames:
    """Give a subject's stored steps of a window, over all versions."""
    rows = RollUp.objects.filter(
        level=level,
        subject=subject,
        step_s=window.base_s,
        at__gte=moment(window.first_s),
        at__lt=moment(window.end_s),
    )
    found: dict[int, list[Figures]] = defaultdict(list)
    for at, body in rows.values_list("at", "figures"):
        found[int(at.timestamp())].append(rollups.unpacked(bytes(body)))
    return [rollups.over_subjects(found[at]) if at in found else None for at in _starts(window)]


def statuses_since(level: str, subject: str, since: datetime) -> Counter[str]:
    """Count a subject's answers by HTTP status since the beginning of an hour, to the last minute.

    Whole hours are read where they are added up already, minutes after that.
    """
    state = RollUpState.objects.first()
    turn = max(since, state.hours_until) if state and state.hours_until else since
    rows = RollUp.objects.filter(level=level, subject=subject)
    hours = rows.filter(step_s=HOUR_S, at__gte=since, at__lt=turn)
    minutes = rows.filter(step_s=MINUTE_S, at__gte=turn)
    found: Counter[str] = Counter()
    for body in (hours | minutes).values_list("figures", flat=True):
        found.update(rollups.unpacked(bytes(body)).statuses)
    return found


def busiest(level: str, window: Window, at_most: int) -> tuple[list[str], int]:
    """Name the subjects of a level with most requests in a window, and say how many there are.

    Of a long window the hours tell, of one that began within the hour the minutes.
    """
    rows = RollUp.objects.filter(
        level=level, at__gte=moment(window.first_s), at__lt=moment(window.end_s)
    )
    for step_s in (MINUTE_S,) if window.is_recent else (HOUR_S, MINUTE_S):
        summed = rows.filter(step_s=step_s).values("subject").annotate(total=Sum("requests"))
        names = list(summed.order_by("-total", "subject").values_list("subject", flat=True))
        if names:
            return names[:at_most], len(names)
    return [], 0


def request_frames(level: str, subjects: Iterable[str], window: Window) -> dict[str, Frames]:
    """Give the stored steps of some subjects with requests and coverage only: cheap to read."""
    rows = RollUp.objects.filter(
        level=level,
        subject__in=list(subjects),
        step_s=window.base_s,
        at__gte=moment(window.first_s),
        at__lt=moment(window.end_s),
    )
    found: dict[str, dict[int, Figures]] = {name: {} for name in subjects}
    for subject, at, covered_s, requests in rows.values_list(
        "subject", "at", "covered_s", "requests"
    ):
        known, new = found[subject], Figures(covered_s=covered_s, requests=requests)
        start = int(at.timestamp())
        known[start] = rollups.over_subjects([known[start], new]) if start in known else new
    return {name: [known.get(at) for at in _starts(window)] for name, known in found.items()}


def replica_frames(replica: str, window: Window) -> Frames:
    """Give one replica's stored steps of a window."""
    return members(MemberRollUp.Kind.REPLICA, replica, [replica], window)[replica]


def gpu_frames(agent: str, indices: Iterable[int], window: Window) -> dict[int, Frames]:
    """Give the stored steps of an agent's GPUs by index."""
    names = {i: gpu_name(agent, i) for i in indices}
    found = members(MemberRollUp.Kind.GPU, agent, names.values(), window)
    return {i: found[name] for i, name in names.items()}


def members(
    kind: MemberRollUp.Kind, owner: str, names: Iterable[str], window: Window
) -> dict[str, Frames]:
    """Give stored steps of some members of one shard, by name."""
    rows = MemberRollUp.objects.filter(
        kind=kind,
        shard=shard(owner),
        step_s=window.base_s,
        at__gte=moment(window.first_s),
        at__lt=moment(window.end_s),
    )
    wanted = list(names)
    kept = {
        int(at.timestamp()): rollups.picked_members(bytes(body), wanted)
        for at, body in rows.values_list("at", "members")
    }
    return {n: [kept.get(at, {}).get(n) for at in _starts(window)] for n in wanted}


def shard(owner: str) -> int:
    """Give the shard of a replica, or of an agent's GPUs."""
    return zlib.crc32(owner.encode()) % SHARDS


def gpu_name(agent: str, index: int) -> str:
    """Name a GPU among all agents'."""
    return f"{agent}/{index}"


def moment(at_s: float) -> datetime:
    """Turn Unix seconds into a time as the database has it."""
    return datetime.fromtimestamp(at_s, UTC)


def _starts(window: Window) -> range:
    return range(window.first_s, window.end_s, window.base_s)
