"""Keeps when the loops of other apps ran: beat starts them, and this app records runs of loops.

The loops of this app record themselves, with what they said; `audit` and `usage` know no `routing`,
so their tasks are seen through Celery's signals.
"""

from __future__ import annotations

import time
from typing import Any, Final

from celery import signals
from django.conf import settings

from controlplane.domain.amounts import counted
from controlplane.routing.services import loops

OWN: Final = frozenset({"routing.sweep", "routing.reconcile"})
_begun: dict[str, float] = {}  # by task id: monotonic seconds


def intervals() -> dict[str, float]:
    """Give how often beat starts each loop, in seconds, by task name."""
    schedule: Any = settings.CELERY_BEAT_SCHEDULE
    return {entry["task"]: float(entry["schedule"]) for entry in schedule.values()}


def connect() -> None:
    """Have Celery tell us of runs, in whichever process they happen."""
    signals.task_prerun.connect(_begins)
    signals.task_postrun.connect(_ended)


def _begins(task_id: str = "", task: Any = None, **_: Any) -> None:
    interval_s = intervals().get(task.name)
    if interval_s is not None and task.name not in OWN:
        _begun[task_id] = time.monotonic()
        loops.note_begin(task.name, interval_s)


def _ended(
    task_id: str = "", task: Any = None, retval: Any = None, state: str = "", **_: Any
) -> None:
    begun = _begun.pop(task_id, None)
    if begun is None:
        return
    said = f"{counted(retval, 'rows')} forgotten" if isinstance(retval, int) else str(retval)
    if state == "FAILURE":
        said = f"failed: {type(retval).__name__}: {retval}"
    loops.note_end(task.name, time.monotonic() - begun, said)
