"""Bringing a table to an agent, and booking what the agent made of it."""

from __future__ import annotations

import msgspec
import structlog
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain.errors import NotFound, Unavailable
from controlplane.fleet.models import Agent
from controlplane.routing import selectors
from controlplane.routing.models import Delivery, Publication, RoutingEpoch
from controlplane.routing.push import TABLE_PATH, AgentAnswer, AgentUnreachable, call_agent
from controlplane.routing.services.halting import note_running, refuse_if_halted
from controlplane.wake import waker
from routing_agent import wire

log = structlog.get_logger(__name__)

_DETAIL_LENGTH = 300
_FINAL = {Delivery.Outcome.APPLIED, Delivery.Outcome.SUPERSEDED}


def deliver_table(*, agent_id: int, epoch: int) -> Delivery | None:
    """Bring one agent to at least `epoch`. Safe to run twice, late, or out of order.

    The newest table goes out, whatever number was asked for; None when there is nothing to do.
    """
    current = selectors.publication()
    newest = selectors.newest_table(current)
    agent = Agent.objects.select_related("node").filter(pk=agent_id).first()
    if agent is None or newest is None or current.halted_reason or newest.epoch < epoch:
        return None
    delivery, _ = Delivery.objects.get_or_create(agent=agent, epoch=newest)
    if delivery.outcome == Delivery.Outcome.APPLIED and _runs(agent, current, newest):
        return None
    now = timezone.now()
    Delivery.objects.filter(pk=delivery.pk).update(
        attempts=F("attempts") + 1, first_tried_at=delivery.first_tried_at or now
    )
    outcome, detail = _push(agent, newest)
    _finish(delivery, outcome, detail)
    return delivery


def retry_delivery(*, agent: str, actor: Actor, reason: str) -> None:
    """Push the newest table to one agent (by public id) again, now."""
    row = Agent.objects.filter(public_id=agent).first()
    if row is None:
        raise NotFound(f"There is no agent {agent!r}.")
    current = selectors.publication()
    refuse_if_halted(current)
    with transaction.atomic():
        Delivery.objects.filter(agent=row, epoch__epoch=current.epoch).update(
            outcome=Delivery.Outcome.PENDING, attempts=0, first_tried_at=None, finished_at=None
        )
        record(actor=actor, verb="agent.retry_delivery", target=("agent", agent), reason=reason)
        transaction.on_commit(waker("routing.deliver", row.pk, current.epoch))


def _runs(agent: Agent, current: Publication, table: RoutingEpoch) -> bool:
    return (
        agent.reported_lineage == current.lineage
        and agent.applied_epoch == table.epoch
        and agent.applied_digest == table.digest
    )


def _push(agent: Agent, table: RoutingEpoch) -> tuple[str, str]:
    """Send the table and give the delivery's outcome with its detail."""
    try:
        answer = call_agent(agent.admin_url, method="PUT", path=TABLE_PATH, body=bytes(table.table))
        receipt = _receipt(answer)
    except AgentUnreachable as error:
        return Delivery.Outcome.UNREACHABLE, str(error)
    except Unavailable as error:  # no signing key: nothing can go out
        return Delivery.Outcome.UNREACHABLE, error.message
    return book_receipt(agent, table, receipt)


def _receipt(answer: AgentAnswer) -> wire.TableReceipt:
    try:
        return msgspec.json.decode(answer.body, type=wire.TableReceipt)
    except msgspec.MsgspecError as error:
        told = answer.body[:200].decode(errors="replace")
        raise AgentUnreachable(f"answered {answer.status} without a receipt: {told}") from error


def book_receipt(agent: Agent, table: RoutingEpoch, receipt: wire.TableReceipt) -> tuple[str, str]:
    """Book what an agent says it runs after a push; give the delivery's outcome and detail."""
    current = selectors.publication()
    note_running(current, agent.node.name, receipt)
    match receipt.outcome:
        case "applied" | "already_there":
            _book_applied(agent, table, receipt)
            return Delivery.Outcome.APPLIED, ""
        case "invalid":
            return Delivery.Outcome.INVALID, receipt.detail
        case "refused_older" if table.epoch < receipt.epoch <= current.epoch:
            return Delivery.Outcome.SUPERSEDED, receipt.detail  # a newer push was quicker
        case _:
            return Delivery.Outcome.REFUSED, receipt.detail


def _book_applied(agent: Agent, table: RoutingEpoch, receipt: wire.TableReceipt) -> None:
    """Note what the agent runs, unless a later word of it is booked already."""
    revision = RoutingEpoch.objects.filter(pk=table.pk).values_list("fleet_revision", flat=True)
    not_later = ~Q(reported_lineage=receipt.lineage) | Q(applied_epoch__lte=receipt.epoch)
    Agent.objects.filter(not_later, pk=agent.pk).update(
        reported_lineage=receipt.lineage,
        applied_epoch=receipt.epoch,
        applied_digest=receipt.digest,
        applied_revision=revision.first() or table.fleet_revision,
        table_source="push",
    )


def _finish(delivery: Delivery, outcome: str, detail: str) -> None:
    """Write a push's outcome; an applied delivery stays applied whatever a late push says."""
    Delivery.objects.filter(pk=delivery.pk).exclude(outcome__in=_FINAL).update(
        outcome=outcome,
        detail=detail[:_DETAIL_LENGTH],
        finished_at=None if outcome == Delivery.Outcome.UNREACHABLE else timezone.now(),
    )
    delivery.refresh_from_db()
    if outcome not in _FINAL:
        log.warning(
            "table_not_delivered", agent=delivery.agent.node.name, outcome=outcome, detail=detail
        )
