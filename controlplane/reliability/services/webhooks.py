"""Webhooks: who is told of alerts. Address and secret are credentials: written, never read out."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from django.db import IntegrityError, transaction

from controlplane import locking
from controlplane.audit.services import Actor, record
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.fleet.models import Pool
from controlplane.reliability import outbound
from controlplane.reliability.models import Webhook, WebhookDelivery
from controlplane.reliability.services import messages


class WebhookFields(TypedDict, total=False):
    """What may be said of a webhook, at creation and later."""

    url: str
    pool: str  # only alerts of this pool; empty: all
    only_critical: bool
    enabled: bool


@dataclass(frozen=True, slots=True)
class CreatedWebhook:
    """A new webhook with the secret that signs its messages, shown this once."""

    webhook: Webhook
    plaintext: str

    def __repr__(self) -> str:
        return f"CreatedWebhook({self.webhook.name})"


@transaction.atomic
def create_webhook(
    *, name: str, actor: Actor, reason: str, **fields: Unpack[WebhookFields]
) -> CreatedWebhook:
    """Tell an address of alerts from now on."""
    secret = f"sbw-{secrets.token_urlsafe(32)}"
    row = Webhook(name=name, secret=secret, **fields)
    _check(row)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"There is already a webhook {name!r}.", field="name") from error
    _record("webhook.create", row, actor=actor, reason=reason, change=(None, facts(row)))
    return CreatedWebhook(row, secret)


@transaction.atomic
def update_webhook(
    *,
    name: str,
    actor: Actor,
    reason: str,
    expected_version: int | None = None,
    **changes: Unpack[WebhookFields],
) -> Webhook:
    """Change where and what a webhook is told."""
    row = _get(name)
    before = facts(row)
    for field, value in changes.items():
        setattr(row, field, value)
    _check(row)
    locking.change(row, changes, expected_version=expected_version, called=f"Webhook '{name}'")
    _record("webhook.update", row, actor=actor, reason=reason, change=(before, facts(row)))
    return row


@transaction.atomic
def delete_webhook(
    *, name: str, actor: Actor, reason: str, expected_version: int | None = None
) -> None:
    """Tell an address no more, and forget what it was told."""
    row = _get(name)
    before = facts(row)
    locking.delete(row, expected_version=expected_version, called=f"Webhook '{name}'")
    _record("webhook.delete", row, actor=actor, reason=reason, change=(before, None))


@transaction.atomic
def test_webhook(*, name: str, actor: Actor, reason: str) -> WebhookDelivery:
    """Send a message that says it is a test; its delivery shows what became of it."""
    row = _get(name)
    if not row.enabled:
        raise Conflict(f"Webhook '{name}' is switched off.")
    delivery = messages.queue_test(row)
    _record("webhook.test", row, actor=actor, reason=reason, change=(None, None))
    return delivery


def _get(name: str) -> Webhook:
    row = Webhook.objects.filter(name=name).first()
    if row is None:
        raise NotFound(f"There is no webhook {name!r}.")
    return row


def _check(row: Webhook) -> None:
    locking.check(row)
    outbound.checked_url(row.url)
    if row.pool and not Pool.objects.filter(slug=row.pool).exists():
        raise Invalid(f"There is no pool {row.pool!r}.", code="unknown_reference", field="pool")


def facts(row: Webhook) -> dict[str, Any]:
    """Give a webhook as JSON values, without what must not be shown."""
    return {
        "host": outbound.origin(row.url),
        "pool": row.pool,
        "only_critical": row.only_critical,
        "enabled": row.enabled,
    }


def _record(verb: str, row: Webhook, *, actor: Actor, reason: str, change: tuple[Any, Any]) -> None:
    record(actor=actor, verb=verb, target=("webhook", row.name), reason=reason, change=change)
