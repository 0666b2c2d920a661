"""People and tokens of tenants, for tests."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.test import Client

from controlplane.tenants import services
from controlplane.tenants.models import Membership, Tenant, TenantRole
from tests.controlplane.calling import bearing
from tests.factories import WHY

MEMBER, ADMIN = TenantRole.MEMBER, TenantRole.ADMIN


def member(tenant: Tenant, role: str = MEMBER, name: str = "") -> Client:
    """Give a client signed in as a member of a tenant."""
    user, _ = User.objects.get_or_create(username=name or f"{role}-of-{tenant.slug}")
    Membership.objects.create(tenant=tenant, user=user, role=role)
    client = Client()
    client.force_login(user)
    return client


def tenants_robot(tenant: Tenant, role: str = ADMIN):
    """Give an API client that carries a tenant's token."""
    _, text = services.issue_tenant_token(
        tenant=tenant.slug, name=f"ci-{role[-3:]}", role=role, **WHY
    )
    return bearing(text)
