"""Forms of the adapters' pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from controlplane.catalog.selectors import model_names_for
from controlplane.domain.adapters import NAME_RULE
from controlplane.fleet.models import Pool
from controlplane.tenants.models import Tenant

NO_TENANT = [("", "there is none yet: make one under Tenants")]
NO_MODEL = [("", "there is none yet: register a version first")]


class UploadForm(forms.Form):
    """What an upload needs beside its files."""

    tenant = forms.ChoiceField(label="Tenant")
    name = forms.CharField(label="Name", max_length=300, strip=False, help_text=NAME_RULE)
    model = forms.ChoiceField(label="Base model")
    pool = forms.ChoiceField(
        label="Pool",
        required=False,
        help_text="Needed only where the configuration names no base model.",
    )
    reason = forms.CharField(label="Reason (goes into the audit log)", max_length=300,
                             required=False)  # fmt: skip

    def __init__(self, data: Any, *, tenants: Sequence[Tenant], pools: bool) -> None:
        super().__init__(data)
        self.fields["tenant"].choices = [(t.slug, t.name) for t in tenants] or NO_TENANT  # type: ignore[attr-defined]
        if len(tenants) == 1:
            self.fields["tenant"].widget = forms.HiddenInput()
            self.fields["tenant"].initial = tenants[0].slug
        names = {name for tenant in tenants for name in model_names_for(tenant)}
        self.fields["model"].choices = [(name, name) for name in sorted(names)] or NO_MODEL  # type: ignore[attr-defined]
        slugs = Pool.objects.filter(model_version__model__name__in=names)
        found = sorted(slugs.values_list("slug", flat=True)) if pools else []
        self.fields["pool"].choices = [("", "any"), *((s, s) for s in found)]  # type: ignore[attr-defined]


class EditForm(forms.Form):
    """Pin and share."""

    pinned = forms.BooleanField(
        label="Pinned", required=False, help_text="Never evicted to make room for another."
    )
    shared_with = forms.CharField(
        label="Shared with", required=False, max_length=2000,
        help_text="Slugs of tenants that may call it too, separated by spaces.",
    )  # fmt: skip
    reason = forms.CharField(label="Reason (goes into the audit log)", max_length=300)
