"""One publisher at a time compiles the fleet into the next numbered table."""

from __future__ import annotations

from controlplane.audit.services import Actor


def publish_if_behind() -> int | None:
    """Publish a table if the fleet changed since the last; give its epoch, None if not due."""
    raise NotImplementedError


def republish(*, actor: Actor, reason: str) -> int:
    """Publish the fleet as it is under a new epoch even though nothing changed; give that epoch."""
    raise NotImplementedError


def adopt(*, actor: Actor, reason: str) -> int:
    """Continue after a restored backup: publish at the highest reported epoch plus one; give it."""
    raise NotImplementedError
