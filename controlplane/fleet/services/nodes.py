"""Nodes and the one-time tokens by which their agents register."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Any, TypedDict, Unpack

import msgspec
from django.db import transaction
from django.utils import timezone

from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Conflict, Invalid
from controlplane.fleet.models import Node, RegistrationToken
from controlplane.fleet.services.editing import (
    create,
    edit,
    found,
    plain,
    refuse_if_moved,
)
from controlplane.wake import waker
from routing_agent import wire

TOKEN_LIFETIME_S = 24 * 3600.0


class NodeFields(TypedDict, total=False):
    """What may be said of a node, at creation and later."""

    zone: str
    hostname: str
    gpus: list[dict[str, Any]]
    owner: str
    backup_owner: str


@transaction.atomic
def create_node(*, name: str, actor: Actor, reason: str, **fields: Unpack[NodeFields]) -> Node:
    """Declare a machine; its agent comes with a registration token of its own."""
    _check_gpus(fields.get("gpus", []))
    node = create(Node(name=name, **fields), f"There is already a node {name!r}.", "name")
    record(
        actor=actor,
        verb="node.create",
        target=("node", name),
        reason=reason,
        change=(None, plain(node, fields)),
    )
    return node


@transaction.atomic
def update_node(
    *,
    name: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[NodeFields],
) -> Node:
    """Change what is declared of a node."""
    node = found(Node.objects.all(), "node", name=name)
    _check_gpus(changes.get("gpus", []))
    before = plain(node, changes)
    edit(node, changes, expected_version, f"There is already a node {name!r}.")
    record(
        actor=actor,
        verb="node.update",
        target=("node", name),
        reason=reason,
        change=(before, plain(node, changes)),
        touches_fleet=True,  # the zone is in the table
    )
    transaction.on_commit(waker("routing.publish"))
    return node


@transaction.atomic
def delete_node(
    *, name: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Remove a node and forget its agent; refused while replicas stand on it."""
    node = found(Node.objects.all(), "node", name=name)
    refuse_if_moved(node, expected_version)
    standing = list(node.replicas.values_list("public_id", flat=True)[:4])
    if standing:
        raise Conflict(
            f"Replicas still stand on node {name!r} ({', '.join(standing[:3])}"
            f"{' and more' if len(standing) > 3 else ''}): delete them or move them first.",
            code="in_use",
        )
    node.delete()
    record(actor=actor, verb="node.delete", target=("node", name), reason=reason)


@transaction.atomic
def issue_registration_token(
    *, node: str, actor: Actor, reason: str, lifetime_s: float = TOKEN_LIFETIME_S
) -> tuple[RegistrationToken, str]:
    """Make a token by which one agent may register once; its text is given here and never again."""
    row = found(Node.objects.all(), "node", name=node)
    plaintext = f"sbr-{secrets.token_urlsafe(32)}"
    token = RegistrationToken.objects.create(
        node=row,
        sha256=hashlib.sha256(plaintext.encode()).hexdigest(),
        created_by=actor.name,
        expires_at=timezone.now() + timedelta(seconds=lifetime_s),
    )
    record(actor=actor, verb="node.issue_token", target=("node", node), reason=reason)
    return token, plaintext


def _check_gpus(gpus: Any) -> None:
    try:
        msgspec.convert(gpus, tuple[wire.Gpu, ...])
    except msgspec.ValidationError as error:
        raise Invalid(
            f"gpus: {error}. Each GPU has an index, a model and memory_bytes.", field="gpus"
        ) from error
