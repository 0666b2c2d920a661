"""One publisher at a time compiles the fleet into the next numbered table.

Whoever changes the publication's row from the epoch and revision it started from has published; the
other looks again. When the fleet's table comes out as it was (a change that agents need not know),
no new epoch is made: the newest epoch's `fleet_revision` moves on instead, and so does
`applied_revision` of the agents that run it, so that "observed by n of m" becomes true.
"""

from __future__ import annotations

import time

import msgspec
import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Conflict, Unavailable
from controlplane.domain.tables import Compiled, compile_table
from controlplane.fleet.models import Agent
from controlplane.routing import selectors
from controlplane.routing.models import Delivery, Publication, RoutingEpoch
from controlplane.routing.services.halting import refuse_if_halted
from controlplane.wake import waker

log = structlog.get_logger(__name__)

EPOCHS_KEPT = 200
ROUNDS = 20  # a loser looks again; each round has a winner, so 20 rivals all get through


def publish_if_behind() -> int | None:
    """Publish a table if the fleet changed since the last; give its epoch, None if not due.

    Waits a moment first, so that a burst of changes becomes few tables.
    """
    if not _is_behind():
        return None
    time.sleep(settings.PUBLISH_DEBOUNCE_S)
    published = None
    for _ in range(ROUNDS):
        if not _is_behind():
            break
        published = _publish_once() or published
    return published


def republish(*, actor: Actor, reason: str) -> int:
    """Publish the fleet as it is under a new epoch even though nothing changed; give that epoch."""
    with transaction.atomic():
        refuse_if_halted(selectors.publication())
        record(
            actor=actor,
            verb="routing.republish",
            target=("routing", "publication"),
            reason=reason,
            touches_fleet=True,
        )
    return _publish_anew(reason or "republished")


def adopt(*, actor: Actor, reason: str) -> int:
    """Continue after a restored backup: publish at the highest reported epoch plus one; give it.

    Raises:
        Conflict: when publishing is not halted, so there is nothing to adopt.
    """
    with transaction.atomic():
        current = selectors.publication()
        if not current.halted_reason:
            raise Conflict("Publishing is not halted: there is nothing to adopt.")
        highest = max(current.epoch, current.highest_reported_epoch)
        won = Publication.objects.filter(pk=1, halted_at=current.halted_at).update(
            epoch=highest, halted_reason="", halted_at=None
        )
        if not won:
            raise Conflict("Somebody else adopted meanwhile: look again.")
        record(
            actor=actor,
            verb="routing.adopt",
            target=("routing", "publication"),
            reason=reason,
            change=(
                {"epoch": current.epoch, "halted": current.halted_reason},
                {"epoch": highest + 1},
            ),
            touches_fleet=True,
        )
    return _publish_anew(f"adopted: {reason}"[:200])


def _publish_anew(reason: str) -> int:
    for _ in range(ROUNDS):
        epoch = _publish_once(anew=True, reason=reason)
        if epoch is not None:
            return epoch
        refuse_if_halted(selectors.publication())
    raise Unavailable("Others publish all the time; try again in a moment.")


def _is_behind() -> bool:
    current = selectors.publication()
    return not current.halted_reason and selectors.fleet_revision() > current.published_revision


def _publish_once(*, anew: bool = False, reason: str = "") -> int | None:
    """Compile one snapshot and try to be the one who publishes it; None if no epoch came of it."""
    started = time.monotonic()
    with selectors.one_moment():
        current = selectors.publication()
        snapshot = selectors.fleet_snapshot()
    newest = selectors.newest_table(current)
    compiled = compile_table(
        snapshot,
        lineage=current.lineage,
        epoch=current.epoch + 1,
        created_at=timezone.now().timestamp(),
    )
    if not anew and newest is not None and newest.digest == compiled.table.digest:
        _move_on(current, snapshot.revision, compiled)
        return None
    if not _store(current, compiled, reason):
        return None
    log.info(
        "table_published",
        epoch=compiled.table.epoch,
        fleet_revision=snapshot.revision,
        left_out=len(compiled.left_out),
        took_s=round(time.monotonic() - started, 4),
    )
    return compiled.table.epoch


def _claim(current: Publication, *, epoch: int, revision: int) -> bool:
    """Change the publication's row if it still is what `current` was; say whether it was."""
    rows = Publication.objects.filter(
        pk=1,
        epoch=current.epoch,
        published_revision=current.published_revision,
        halted_reason="",
    )
    return bool(rows.update(epoch=epoch, published_revision=revision))


@transaction.atomic
def _move_on(current: Publication, revision: int, compiled: Compiled) -> None:
    """Let the newest epoch cover `revision`, whose changes do not show in the table."""
    if not _claim(current, epoch=current.epoch, revision=revision):
        return
    RoutingEpoch.objects.filter(epoch=current.epoch).update(
        fleet_revision=revision, left_out=_left_out(compiled)
    )
    Agent.objects.filter(
        reported_lineage=current.lineage,
        applied_epoch=current.epoch,
        applied_digest=compiled.table.digest,
    ).update(applied_revision=revision)


@transaction.atomic
def _store(current: Publication, compiled: Compiled, reason: str) -> bool:
    table = compiled.table
    if not _claim(current, epoch=table.epoch, revision=table.fleet_revision):
        return False
    row = RoutingEpoch.objects.create(
        epoch=table.epoch,
        fleet_revision=table.fleet_revision,
        digest=table.digest,
        table=msgspec.json.encode(table),
        left_out=_left_out(compiled),
        reason=reason[:200],
    )
    _open_deliveries(row)
    oldest_kept = table.epoch - EPOCHS_KEPT
    RoutingEpoch.objects.filter(epoch__lte=oldest_kept).delete()
    return True


def _open_deliveries(row: RoutingEpoch) -> None:
    """Replace the deliveries still under way by new ones, and wake one task an agent."""
    open_ones = [Delivery.Outcome.PENDING, Delivery.Outcome.UNREACHABLE]
    Delivery.objects.filter(outcome__in=open_ones).update(
        outcome=Delivery.Outcome.SUPERSEDED, finished_at=timezone.now()
    )
    agents = list(Agent.objects.values_list("pk", flat=True))
    Delivery.objects.bulk_create([Delivery(agent_id=pk, epoch=row) for pk in agents])
    for pk in agents:
        transaction.on_commit(waker("routing.deliver", pk, row.epoch))


def _left_out(compiled: Compiled) -> list[dict[str, str]]:
    return [{"object": row.object, "problem": row.problem} for row in compiled.left_out]
