"""Noticing that agents run newer tables than this database knows: then publishing stops.

It happens when the database was restored from an older copy. Agents refuse anything not newer than
theirs, so going on would number new tables like old ones. An operator looks, then runs
`manage.py adopt`.
"""

from __future__ import annotations

from typing import Protocol

import structlog
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Conflict
from controlplane.routing import selectors
from controlplane.routing.models import Publication

log = structlog.get_logger(__name__)
LOOP = Actor("routing", "loop")


class Running(Protocol):
    """What a report and a receipt both say: the table the agent runs now."""

    @property
    def lineage(self) -> str:
        """Of the database that published it."""
        ...

    @property
    def epoch(self) -> int:
        """Its number; 0 = no table."""
        ...

    @property
    def digest(self) -> str:
        """Of its content."""
        ...


def note_running(current: Publication, agent: str, running: Running) -> None:
    """Compare what an agent runs with what we published last, and halt if it knows more than we.

    Args:
        current: read after the agent spoke, else a table published meanwhile would look like news.
    """
    epoch = running.epoch
    if running.lineage != current.lineage or epoch < current.epoch or epoch == 0:
        return
    if epoch > current.epoch:
        _halt(f"agent {agent} runs epoch {epoch}, newer than ours ({current.epoch})", epoch)
    elif not selectors.covered_revision(epoch, running.digest):
        _halt(f"agent {agent} runs another table under our newest epoch, {epoch}", epoch)
    else:
        return
    current.refresh_from_db()


@transaction.atomic
def _halt(reason: str, epoch: int) -> None:
    row = Publication.objects.filter(pk=1)
    row.filter(highest_reported_epoch__lt=epoch).update(highest_reported_epoch=epoch)
    if not row.filter(halted_reason="").update(halted_reason=reason, halted_at=timezone.now()):
        return
    log.error("publishing_halted", reason=reason, epoch=epoch)
    record(actor=LOOP, verb="routing.halt", target=("routing", "publication"), reason=reason)


def refuse_if_halted(current: Publication) -> None:
    """Raise Conflict while publishing is halted: no table of ours may go out then."""
    if current.halted_reason:
        raise Conflict(told(current), code="publishing_halted")


def told(current: Publication) -> str:
    """Say why publishing is halted and what to do."""
    return (
        f"Publishing is halted: {current.halted_reason}. Was the database restored from a backup?"
        " Look at what it holds, then run `manage.py adopt`."
    )
