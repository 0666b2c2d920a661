"""Nodes and the one-time tokens by which their agents register."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from controlplane.audit.services import Actor
from controlplane.fleet.models import Node, RegistrationToken

TOKEN_LIFETIME_S = 24 * 3600.0


class NodeFields(TypedDict, total=False):
    """What may be said of a node, at creation and later."""

    zone: str
    hostname: str
    gpus: list[dict[str, Any]]
    owner: str
    backup_owner: str


def create_node(*, name: str, actor: Actor, reason: str, **fields: Unpack[NodeFields]) -> Node:
    """Declare a machine; its agent comes with a registration token of its own."""
    raise NotImplementedError


def update_node(
    *,
    name: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[NodeFields],
) -> Node:
    """Change what is declared of a node."""
    raise NotImplementedError


def delete_node(
    *, name: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Remove a node and forget its agent; refused while replicas stand on it."""
    raise NotImplementedError


def issue_registration_token(
    *, node: str, actor: Actor, reason: str, lifetime_s: float = TOKEN_LIFETIME_S
) -> tuple[RegistrationToken, str]:
    """Make a token by which one agent may register once; its text is given here and never again."""
    raise NotImplementedError
