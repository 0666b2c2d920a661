"""Tenant, its keys, members and tokens; StaffProfile and StaffToken (operators, automation)."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models

SLUG = RegexValidator(
    r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z",
    "Use 1 to 63 lower-case letters, digits and hyphens, not starting or ending with a hyphen.",
)


class Role(models.TextChoices):
    """What a member of staff may do; each role includes the ones before it."""

    VIEWER = "viewer", "Viewer"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"


class StaffProfile(models.Model):
    """A console user's role."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="staff_profile"
    )
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)


class StaffToken(models.Model):
    """A token for the REST API, acting with a role; only its SHA-256 is stored."""

    name = models.CharField(max_length=63, unique=True, validators=[SLUG])
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.VIEWER)
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)


class WhenUnreachable(models.TextChoices):
    """What an agent does with a tenant's limits when nobody can share them out."""

    OPEN = "open", "each agent goes by the whole limit alone"
    CLOSED = "closed", "each agent refuses"


class Tenant(models.Model):
    """A customer or team that calls models."""

    slug = models.CharField(max_length=63, unique=True, validators=[SLUG])
    name = models.CharField(max_length=120)
    # 0 is served first.
    priority = models.PositiveSmallIntegerField(default=5, validators=[MaxValueValidator(9)])
    # Names of models this tenant may call; empty = all.
    allowed_models = models.JSONField(default=list, blank=True)
    suspended = models.BooleanField(default=False)
    # Over all agents together; null = unlimited, 0 = nothing.
    requests_per_minute = models.PositiveIntegerField(null=True, blank=True)
    tokens_per_minute = models.PositiveIntegerField(null=True, blank=True)
    concurrency = models.PositiveIntegerField(null=True, blank=True)
    limits_when_unreachable = models.CharField(
        max_length=6, choices=WhenUnreachable.choices, default=WhenUnreachable.OPEN
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["slug"]


class LimitLedger(models.Model):
    """Who holds what of a tenant's limits: one row, so that one agent is answered at a time."""

    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, primary_key=True)
    state = models.JSONField(default=dict)  # domain.quotas.Ledger
    changed_at = models.DateTimeField(auto_now=True)


class TenantRole(models.TextChoices):
    """What somebody may do in a tenant's own area; no word of it means anything to staff."""

    MEMBER = "tenant_member", "Member"
    ADMIN = "tenant_admin", "Tenant admin"


class Membership(models.Model):
    """A console user who belongs to a tenant; one may belong to several."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="tenant_memberships"
    )
    role = models.CharField(max_length=16, choices=TenantRole.choices, default=TenantRole.MEMBER)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["tenant__slug", "user__username"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "user"], name="tenants_member_once")
        ]


class TenantToken(models.Model):
    """A token for the REST API within one tenant; only its SHA-256 is stored."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=63, validators=[SLUG])
    role = models.CharField(max_length=16, choices=TenantRole.choices, default=TenantRole.MEMBER)
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["tenant__slug", "name"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "name"], name="tenants_token_name_once")
        ]


class ApiKey(models.Model):
    """A tenant's key: 256 random bits, shown once, stored as SHA-256 with a readable prefix."""

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_keys")
    public_id = models.CharField(max_length=32, unique=True)
    name = models.CharField(max_length=63)
    prefix = models.CharField(max_length=16)  # "sbx-a1b2c3", enough to recognise a key by
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)  # by the usage booked so far
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["tenant__slug", "name"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=models.Q(revoked_at__isnull=True),
                name="tenants_one_live_key_per_name",
            )
        ]
