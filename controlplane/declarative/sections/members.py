"""Who belongs to which tenant, by user name; passwords are in no file, and links are given once."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import User

from controlplane.declarative.section import Entry, Section, Who
from controlplane.tenants import services
from controlplane.tenants.models import Membership


class MembershipEntry(Entry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One user of one tenant, and what they may there."""

    tenant: str
    username: str
    role: str

    KEY: ClassVar[tuple[str, ...]] = ("tenant", "username")


def _members() -> list[MembershipEntry]:
    rows = Membership.objects.values_list("tenant__slug", "user__username", "role")
    return [MembershipEntry(tenant=t, username=u, role=r) for t, u, r in rows]


def _pk(entry: MembershipEntry) -> int:
    rows = Membership.objects.filter(tenant__slug=entry.tenant, user__username=entry.username)
    return rows.get().pk


def _change_role(old: MembershipEntry, entry: MembershipEntry, who: Who) -> None:
    services.set_member_role(membership_id=_pk(entry), role=entry.role, **who)


def _without_password(entry: MembershipEntry) -> str:
    user = User.objects.filter(username=entry.username).first()
    if user is not None and user.has_usable_password():
        return ""
    return "They have no password: make a new invitation on the tenant's page and hand it on."


MEMBERSHIPS = Section(
    name="memberships",
    entry=MembershipEntry,
    what="membership",
    read=_members,
    create=lambda e, who: services.invite_member(**e.fields(), **who),
    update=_change_role,
    remove=lambda e, who: services.remove_member(membership_id=_pk(e), **who),
    missing=_without_password,
)
