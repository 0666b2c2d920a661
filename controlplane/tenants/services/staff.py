"""Staff: roles of console users, and tokens for automation."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane import locking
from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.tenants import keys, selectors
from controlplane.tenants.models import Role, StaffProfile, StaffToken
from controlplane.tenants.services.accounts import Invitation, account_of, invitation

# A busy script must not write a row with every call; a minute is fine enough for "last used".
TOKEN_USE_GRAIN = timedelta(minutes=1)


@transaction.atomic
def invite_staff(
    *, username: str, role: str, actor: Actor, reason: str
) -> Invitation[StaffProfile]:
    """Give somebody a role in the console; who is new gets an account.

    Raises:
        Invalid: a role or user name that cannot be.
        Conflict: they are the last admin and would be no more.
    """
    user = account_of(username)
    profile = set_role(user=user, role=role, actor=actor, reason=reason)
    return invitation(profile)


@transaction.atomic
def renew_staff_invitation(*, user: User, actor: Actor, reason: str) -> Invitation[StaffProfile]:
    """Take a user's password away and give a new link that sets one.

    Raises:
        NotFound: they have no role.
        Conflict: they are a superuser, whose account is the machine's to reset.
    """
    profile = StaffProfile.objects.filter(user=user).first()
    if profile is None:
        raise NotFound(f"'{user.username}' has no role.")
    if user.is_superuser:
        raise Conflict(
            f"'{user.username}' is a superuser: "
            "an admin of this machine sets their password with manage.py changepassword.",
            code="superuser",
        )
    user.set_unusable_password()
    user.save(update_fields=["password"])
    _record("staff.renew-invitation", ("user", user.username), actor, reason, (None, None))
    return invitation(profile)


@transaction.atomic
def set_role(*, user: User, role: str, actor: Actor, reason: str) -> StaffProfile:
    """Give a console user a role; the last admin keeps theirs."""
    if role not in Role.values:
        raise Invalid(f"role is one of {', '.join(Role.values)}.", field="role")
    if role != Role.ADMIN:
        _refuse_last_admin(user)
    before = StaffProfile.objects.filter(user=user).values_list("role", flat=True).first()
    profile, _ = StaffProfile.objects.update_or_create(user=user, defaults={"role": role})
    _record(
        "staff.set-role", ("user", user.username), actor, reason, ({"role": before}, {"role": role})
    )
    return profile


@transaction.atomic
def remove_role(*, user: User, actor: Actor, reason: str) -> None:
    """Take a user's role away: they can log in and see nothing."""
    _refuse_last_admin(user)
    profile = StaffProfile.objects.filter(user=user).first()
    if profile is None:
        raise NotFound(f"'{user.username}' has no role.")
    profile.delete()
    _record(
        "staff.remove-role", ("user", user.username), actor, reason, ({"role": profile.role}, None)
    )


@transaction.atomic
def issue_staff_token(
    *, name: str, role: str, actor: Actor, reason: str, expires_at: datetime | None = None
) -> tuple[StaffToken, str]:
    """Make a token that acts on the API with a role; its text is given here and never again."""
    if expires_at is not None and expires_at <= timezone.now():
        raise Invalid("expires_at is over already: name a time to come.", field="expires_at")
    secret = keys.make(keys.STAFF_TOKEN)
    token = StaffToken(name=name, role=role, sha256=secret.sha256, expires_at=expires_at)
    locking.check(token)
    try:
        with transaction.atomic():
            token.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(f"A staff token '{name}' exists already.", field="name") from error
    _record("staff-token.issue", ("staff-token", name), actor, reason, (None, {"role": token.role}))
    return token, secret.text


@transaction.atomic
def revoke_staff_token(*, name: str, actor: Actor, reason: str) -> None:
    """End a staff token at once."""
    token = StaffToken.objects.filter(name=name).first()
    if token is None:
        raise NotFound(f"There is no staff token '{name}'.")
    token.delete()
    _record(
        "staff-token.revoke", ("staff-token", name), actor, reason, ({"role": token.role}, None)
    )


def book_token_use(*, token: StaffToken, now: datetime) -> None:
    """Remember that a token was used, at most once a minute."""
    if token.last_used_at is not None and now - token.last_used_at < TOKEN_USE_GRAIN:
        return
    stale = Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - TOKEN_USE_GRAIN)
    StaffToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)


def _refuse_last_admin(user: User) -> None:
    is_admin = selectors.role_of(user) is Role.ADMIN
    if is_admin and not selectors.other_admins(user.pk):
        raise Conflict(
            f"'{user.username}' is the last admin: make somebody else an admin first.",
            code="last_admin",
        )


def _record(
    verb: str, target: tuple[str, str], actor: Actor, reason: str, change: tuple[Any, Any]
) -> None:
    audit.record(actor=actor, verb=verb, target=target, reason=reason, change=change)
