"""Members of tenants: invited with a link that sets a password once, given a role, removed."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.tenants.models import Membership, StaffProfile, Tenant, TenantRole
from controlplane.tenants.services.accounts import Invitation, account_of, invitation


@transaction.atomic
def invite_member(
    *, tenant: str, username: str, role: str, actor: Actor, reason: str
) -> Invitation[Membership]:
    """Make somebody a member of a tenant (by slug); who is new gets an account.

    Raises:
        NotFound: no such tenant.
        Invalid: a role or user name that cannot be.
        Conflict: they belong to it already.
    """
    owner = Tenant.objects.filter(slug=tenant).first()
    if owner is None:
        raise NotFound(f"There is no tenant '{tenant}'.", field="tenant")
    _check_role(role)
    user = account_of(username)
    membership = Membership(tenant=owner, user=user, role=role)
    try:
        with transaction.atomic():
            membership.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(
            f"'{username}' belongs to the tenant '{tenant}' already.", field="username"
        ) from error
    _record("membership.create", membership, actor, reason, (None, {"role": role}))
    return invitation(membership)


@transaction.atomic
def renew_invitation(*, membership_id: int, actor: Actor, reason: str) -> Invitation[Membership]:
    """Take a member's password away and give a new link that sets one.

    Raises:
        Conflict: they are staff or belong to other tenants too: their account is not this
            tenant's to reset.
    """
    membership = _get(membership_id)
    user = membership.user
    others = Membership.objects.filter(user=user).exclude(pk=membership.pk)
    if user.is_superuser or StaffProfile.objects.filter(user=user).exists() or others.exists():
        raise Conflict(
            f"'{user.username}' is staff or belongs to other tenants too: "
            "an admin of this machine sets their password with manage.py changepassword.",
            code="account_shared",
        )
    user.set_unusable_password()
    user.save(update_fields=["password"])
    _record("membership.renew-invitation", membership, actor, reason, (None, None))
    return invitation(membership)


@transaction.atomic
def set_member_role(*, membership_id: int, role: str, actor: Actor, reason: str) -> Membership:
    """Give a member another role."""
    _check_role(role)
    membership = _get(membership_id)
    before = membership.role
    membership.role = role
    membership.save(update_fields=["role"])
    change = ({"role": before}, {"role": role})
    _record("membership.set-role", membership, actor, reason, change)
    return membership


@transaction.atomic
def remove_member(*, membership_id: int, actor: Actor, reason: str) -> None:
    """Take somebody out of a tenant; their account stays, and opens nothing of it any more."""
    membership = _get(membership_id)
    _record("membership.delete", membership, actor, reason, ({"role": membership.role}, None))
    membership.delete()


def _get(membership_id: int) -> Membership:
    found = Membership.objects.select_related("tenant", "user").filter(pk=membership_id).first()
    if found is None:
        raise NotFound(f"There is no membership {membership_id}.")
    return found


def _check_role(role: str) -> None:
    if role not in TenantRole.values:
        raise Invalid(f"role is one of {', '.join(TenantRole.values)}.", field="role")


def _record(
    verb: str, membership: Membership, actor: Actor, reason: str, change: tuple[Any, Any]
) -> None:
    target = f"{membership.tenant.slug}/{membership.user.get_username()}"[:200]
    audit.record(
        actor=actor, verb=verb, target=("membership", target), reason=reason, change=change
    )
