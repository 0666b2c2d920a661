"""Forms of the tenants' pages."""

from __future__ import annotations

from django import forms


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
