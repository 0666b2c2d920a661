"""What agents tell us: registration, reports, and the pull of a table."""

from __future__ import annotations

import hashlib
import secrets
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Invalid, Unauthorized, Unavailable
from controlplane.domain.happenings import HEARD_AGAIN, RESTARTED
from controlplane.domain.urls import checked_origin
from controlplane.fleet.models import Agent, Node, RegistrationToken
from controlplane.routing import selectors, signing
from controlplane.routing.models import Delivery, Publication, RoutingEpoch
from controlplane.routing.services import halting
from controlplane.routing.services.halting import note_running
from controlplane.telemetry import recent
from controlplane.telemetry.snapshots import NoData
from controlplane.wake import waker
from routing_agent import wire

log = structlog.get_logger(__name__)

# An unchanged agent's row is written this often, so that 100 agents cost 25 small writes a second;
# with a report every 2 s `last_seen_at` stays well inside AGENT_SILENT_AFTER_S.
SEEN_WRITE_S = 4.0

_LIVE_READINGS = ("memory_used_bytes", "utilization_ratio", "temperature_celsius")


def authenticate(token: str) -> Agent:
    """Give the agent whose token this is.

    Raises:
        Unauthorized: for a token we do not know.
    """
    digest = hashlib.sha256(token.encode()).hexdigest()
    agent = Agent.objects.select_related("node").filter(token_sha256=digest).first()
    if agent is None:
        raise Unauthorized(
            "This agent's token is not known here: register it again with a new one-time token"
            " and --adopt.",
            code="unknown_agent",
        )
    return agent


@transaction.atomic
def register_agent(*, request: wire.RegisterRequest) -> wire.RegisterReply:
    """Give an agent its identity for a one-time token."""
    urls = {
        "traffic_url": checked_origin(request.traffic_url, field="traffic_url"),
        "admin_url": checked_origin(request.admin_url, field="admin_url"),
    }
    public_key = signing.public_key_text()  # before the token is used up
    node = _use_token(request)
    agent_token = f"sba-{secrets.token_urlsafe(32)}"
    agent, is_new = Agent.objects.update_or_create(
        node=node,
        defaults={
            "token_sha256": hashlib.sha256(agent_token.encode()).hexdigest(),
            "agent_version": request.agent_version[:40],
            **urls,
            **_NOTHING_REPORTED,
        },
        create_defaults={
            "public_id": f"agt-{secrets.token_hex(5)}",
            "token_sha256": hashlib.sha256(agent_token.encode()).hexdigest(),
            "agent_version": request.agent_version[:40],
            **urls,
        },
    )
    _book_node(node, request.node)
    record(
        actor=Actor(node.name, "agent"),
        verb="agent.register",
        target=("agent", agent.public_id),
        reason="first registration" if is_new else "registered again",
        change=(None, urls),
    )
    current = selectors.publication()
    transaction.on_commit(waker("routing.deliver", agent.pk, current.epoch))
    return wire.RegisterReply(
        agent=agent.public_id,
        agent_token=agent_token,
        public_key=public_key,
        lineage=current.lineage,
        server_time=time.time(),
    )


_NOTHING_REPORTED: dict[str, Any] = {
    "last_seen_at": None,
    "started_at": None,
    "reported_lineage": "",
    "applied_epoch": 0,
    "applied_digest": "",
    "applied_revision": 0,
    "table_source": "",
    "draining": False,
    "last_report_number": 0,
}


def _use_token(request: wire.RegisterRequest) -> Node:
    """Use the one-time token up and give the node it is for."""
    digest = hashlib.sha256(request.token.encode()).hexdigest()
    token = RegistrationToken.objects.select_related("node").filter(sha256=digest).first()
    now = timezone.now()
    if token is None or token.expires_at <= now:
        raise Unauthorized("The registration token is unknown or has expired.", code="bad_token")
    if token.node.name != request.name:
        raise Invalid(
            f"The token is for node {token.node.name!r}, not {request.name!r}.", field="name"
        )
    used = RegistrationToken.objects.filter(pk=token.pk, used_at__isnull=True).update(used_at=now)
    if not used:
        raise Unauthorized("The registration token was used already.", code="token_used")
    return token.node


def book_report(
    *, report: wire.Report, token: str, usage_acknowledged: int = 0
) -> wire.ReportReply:
    """Book an agent's heartbeat and tell it what is newest.

    A report that comes twice changes nothing the second time; one that was overtaken by a later one
    changes nothing at all. The agent's clock is never compared with ours.

    Args:
        usage_acknowledged: number of the last usage record that is stored for this agent.
    """
    agent = authenticate(token)
    if report.agent != agent.public_id:
        raise Unauthorized(
            f"The token belongs to agent {agent.public_id}, the report to {report.agent!r}.",
            code="wrong_agent",
        )
    current = selectors.publication()
    if not _is_overtaken(agent, report):
        note_running(current, agent.node.name, report)
        _book_agent(agent, report, current)
        _book_node(agent.node, report.node)
        _keep_recent(msgspec.structs.replace(report, placed=None, peer=None))
    return wire.ReportReply(
        server_time=time.time(),
        lineage=current.lineage,
        epoch=0 if current.halted_reason else current.epoch,
        usage_acknowledged=usage_acknowledged,
        others=() if report.placed is None else _others_placed(report),
    )


def _others_placed(report: wire.Report) -> tuple[wire.AgentPlaced, ...]:
    """Hand agents' placements on; advisory, so that a store that is gone costs nothing else."""
    try:
        found = recent.exchange(report, time.time())
    except Exception:
        log.exception("placements_not_exchanged", agent=report.agent)
        return ()
    return () if isinstance(found, NoData) else found


def _keep_recent(report: wire.Report) -> None:
    """Hand the report to the recent store, whose loss must never cost an agent its answer."""
    try:
        recent.book(report, time.time())
    except Exception:
        log.exception("report_not_kept", agent=report.agent, number=report.number)


def _is_overtaken(agent: Agent, report: wire.Report) -> bool:
    """Say whether a later report of the same process is booked; the same number may come again."""
    return (
        agent.started_at == _moment(report.started_at) and report.number < agent.last_report_number
    )


def _moment(seconds: float) -> datetime | None:
    """Take the agent's own word for a moment, as a name for its process; None if it is none."""
    try:
        return datetime.fromtimestamp(round(seconds, 3), UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _book_agent(agent: Agent, report: wire.Report, current: Publication) -> None:
    """Write the agent's row when something changed, else every few seconds."""
    now = timezone.now()
    is_ours = report.lineage == current.lineage
    state: dict[str, Any] = {
        "started_at": _moment(report.started_at),
        "agent_version": report.agent_version[:40],
        "reported_lineage": report.lineage[:36],
        "applied_epoch": report.epoch,
        "applied_digest": report.digest[:64],
        "applied_revision": (
            selectors.covered_revision(report.epoch, report.digest) if is_ours else 0
        ),
        "table_source": report.table_source,
        "draining": report.draining,
    }
    is_changed = any(getattr(agent, name) != value for name, value in state.items())
    is_old = agent.last_seen_at is None or now - agent.last_seen_at >= timedelta(
        seconds=SEEN_WRITE_S
    )
    state |= {"last_seen_at": now, "last_report_number": report.number}
    was = _was_away(agent, state["started_at"], now)
    if was:
        _note_return(agent, report, was, state)
    elif is_changed or is_old:
        Agent.objects.filter(pk=agent.pk).update(**state)
    if is_changed and state["applied_epoch"] != agent.applied_epoch:
        _close_delivery(agent, report)


def _was_away(agent: Agent, started_at: datetime | None, now: datetime) -> str:
    """Say what is remarkable of an agent's report: it was silent, or is another process now."""
    if agent.last_seen_at is None or agent.started_at is None:
        return ""
    if (now - agent.last_seen_at).total_seconds() > settings.AGENT_SILENT_AFTER_S:
        return HEARD_AGAIN
    return RESTARTED if started_at != agent.started_at else ""


@transaction.atomic
def _note_return(agent: Agent, report: wire.Report, verb: str, state: dict[str, Any]) -> None:
    """Write the agent's row and record its return; of two reports at once one does both."""
    rows = Agent.objects.filter(
        pk=agent.pk, last_seen_at=agent.last_seen_at, started_at=agent.started_at
    )
    if not rows.update(**state) or agent.last_seen_at is None:
        return
    silent_s = (state["last_seen_at"] - agent.last_seen_at).total_seconds()
    record(
        actor=Actor(agent.node.name, "agent"),
        verb=verb,
        target=("agent", agent.public_id),
        reason=f"last heard {silent_s:.0f} s before",
        change=(
            {},
            {
                "from": agent.last_seen_at.isoformat(),
                "to": state["last_seen_at"].isoformat(),
                "restarted": state["started_at"] != agent.started_at,
                "table_source": report.table_source,
                "epoch": report.epoch,
            },
        ),
    )


def _close_delivery(agent: Agent, report: wire.Report) -> None:
    """Note that a table arrived by another way than our push, or that its receipt was lost."""
    Delivery.objects.filter(agent=agent, epoch__epoch=report.epoch).exclude(
        outcome=Delivery.Outcome.APPLIED
    ).update(
        outcome=Delivery.Outcome.APPLIED,
        detail="",
        finished_at=timezone.now(),
        source="pull" if report.table_source == "pull" else "push",
    )


def _book_node(node: Node, facts: wire.NodeFacts) -> None:
    """Take over what an agent sees of its machine; what it cannot see stays as declared."""
    gpus = [
        {k: v for k, v in msgspec.to_builtins(gpu).items() if k not in _LIVE_READINGS}
        for gpu in facts.gpus
    ]
    seen: dict[str, Any] = {
        "hostname": facts.hostname[:253],
        "driver_version": facts.driver_version[:40],
        "cuda_version": facts.cuda_version[:40],
        "gpus": gpus,
        "executor": msgspec.to_builtins(facts.executor) if facts.executor else {},
    }
    news = {
        name: value
        for name, value in seen.items()
        # An agent that may start nothing any more says so by saying nothing.
        if (value or name == "executor") and getattr(node, name) != value
    }
    if news:
        Node.objects.filter(pk=node.pk).update(**news, updated_at=timezone.now())
        log.info("node_changed", node=node.name, changed=sorted(news))


def table_for_agent(*, token: str) -> RoutingEpoch:
    """Give the newest table to an agent that asks for it.

    Raises:
        Unavailable: while publishing is halted, or before the first table.
    """
    authenticate(token)
    current = selectors.publication()
    if current.halted_reason:
        raise Unavailable(halting.told(current), code="publishing_halted")
    newest = selectors.newest_table(current)
    if newest is None:
        raise Unavailable("No table has been published yet.", code="no_table")
    return newest
