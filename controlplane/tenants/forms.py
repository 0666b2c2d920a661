"""Forms of the tenants' pages."""

from __future__ import annotations

from typing import Any, cast

from django import forms

from controlplane.tenants.models import Role, Tenant, TenantRole, WhenUnreachable
from controlplane.tenants.services.tenants import TenantFields

MODELS = "allowed_models"
ROLE_HELP = "Members look; a tenant admin also issues, rotates and revokes keys."


class IssueKeyForm(forms.Form):
    """What a new key needs."""

    name = forms.CharField(
        max_length=63, label="Name", help_text="What it is for, for example “batch jobs”."
    )
    expires_at = forms.DateTimeField(
        required=False,
        label="Expires (UTC)",
        help_text="Empty: never.",
        widget=forms.DateTimeInput({"type": "datetime-local"}),
    )
    reason = forms.CharField(max_length=300, label="Reason (goes into the audit log)")


class RotateKeyForm(forms.Form):
    """How long the old key goes on beside the new one."""

    overlap_hours = forms.IntegerField(
        min_value=0,
        max_value=720,
        initial=24,
        label="Overlap (hours)",
        help_text="Both keys work for so long; then the old one is refused. 0: at once.",
    )
    reason = forms.CharField(max_length=300, label="Reason (goes into the audit log)")


LIMITS = {
    "requests_per_minute": "Requests a minute",
    "tokens_per_minute": "Tokens a minute, in and out",
    "concurrency": "Requests at the same time",
}


def _limit_field(name: str) -> forms.IntegerField:
    return forms.IntegerField(
        min_value=0,
        max_value=2_147_483_647,
        required=False,
        label=LIMITS[name],
        help_text="Over all agents together. Empty: no limit; 0: nothing.",
    )


class TenantForm(forms.Form):
    """What may be said of a tenant: name, priority, models, limits."""

    name = forms.CharField(max_length=120, label="Name")
    priority = forms.IntegerField(
        min_value=0,
        max_value=9,
        initial=5,
        label="Priority",
        help_text="0 is served first, 9 last.",
    )
    allowed_models = forms.CharField(
        required=False,
        label="Models it may call",
        help_text="Names, separated by spaces or commas. Empty: every model.",
    )
    requests_per_minute = _limit_field("requests_per_minute")
    tokens_per_minute = _limit_field("tokens_per_minute")
    concurrency = _limit_field("concurrency")
    limits_when_unreachable = forms.ChoiceField(
        choices=WhenUnreachable.choices,
        label="When no control plane answers",
        help_text="What becomes of its limits once the agents' shares have run out.",
    )
    suspended = forms.BooleanField(
        required=False, label="Suspended", help_text="Every request of it is refused with 403."
    )

    def __init__(self, *args: Any, tenant: Tenant | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tenant = tenant

    @classmethod
    def of(cls, tenant: Tenant) -> TenantForm:
        """Give the form as the tenant is now."""
        initial = {name: getattr(tenant, name) for name in cls.base_fields if name != MODELS}
        return cls(tenant=tenant, initial=initial | {MODELS: " ".join(tenant.allowed_models)})

    def clean_allowed_models(self) -> list[str]:
        """Give the names, each once, in the order they were typed."""
        return list(dict.fromkeys(self.cleaned_data[MODELS].replace(",", " ").split()))

    def changes(self) -> TenantFields:
        """Give what differs from the tenant as it is; all of it for a new one."""
        given = {name: self.cleaned_data[name] for name in self.base_fields}
        if self.tenant is None:
            return cast(TenantFields, given)
        now = {name: getattr(self.tenant, name) for name in given}
        return cast(TenantFields, {n: v for n, v in given.items() if v != now[n]})

    def differences(self) -> list[tuple[str, str, str]]:
        """Give label, before and after of each change."""
        return [
            (str(self.fields[n].label), shown(n, getattr(self.tenant, n)), shown(n, value))
            for n, value in self.changes().items()
        ]


class NewTenantForm(TenantForm):
    """A new tenant: its slug as well."""

    slug = forms.SlugField(
        max_length=63, label="Slug", help_text="Its name in addresses, for good: acme-prod."
    )
    reason = forms.CharField(max_length=300, label="Reason (goes into the audit log)")
    field_order = ("slug", "name")


class MemberForm(forms.Form):
    """Who becomes a member, and as what."""

    username = forms.CharField(
        max_length=150, label="User name", help_text="Who has no account yet gets one."
    )
    role = forms.ChoiceField(choices=TenantRole.choices, label="Role", help_text=ROLE_HELP)
    reason = forms.CharField(max_length=300, label="Reason (goes into the audit log)")


class StaffForm(forms.Form):
    """Who gets a role in the console."""

    username = forms.CharField(
        max_length=150, label="User name", help_text="Who has no account yet gets one."
    )
    role = forms.ChoiceField(
        choices=Role.choices,
        label="Role",
        help_text="Viewers look; operators act on the fleet; admins also make tenants and staff.",
    )
    reason = forms.CharField(max_length=300, label="Reason (goes into the audit log)")


class StaffTokenForm(IssueKeyForm):
    """What a new API token needs: what a key does, and a role."""

    name = forms.CharField(
        max_length=63,
        label="Name",
        help_text="What uses it, for example ci: small letters, digits and hyphens.",
    )
    role = forms.ChoiceField(
        choices=Role.choices, label="Role", help_text="The least that does: viewers only look."
    )
    field_order = ("name", "role", "expires_at", "reason")


def shown(name: str, value: Any) -> str:
    """Write a tenant's value as a reader knows it."""
    if value is None:
        return "no limit"
    if name == MODELS:
        return ", ".join(value) or "every model"
    if name == "limits_when_unreachable":
        return str(WhenUnreachable(value).label)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
