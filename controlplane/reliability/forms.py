"""Forms of the reliability pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.utils import timezone

from controlplane.console.widgets import Number
from controlplane.domain.alert_rules import RULES
from controlplane.reliability.models import MaintenanceWindow
from controlplane.reliability.selectors import Promise

DURATIONS = (
    ("0.5", "30 minutes"),
    ("2", "2 hours"),
    ("8", "8 hours"),
    ("24", "1 day"),
    ("168", "7 days"),
)


def _reason(help_text: str = "") -> forms.CharField:
    return forms.CharField(
        max_length=300, label="Reason (goes into the audit log)", help_text=help_text
    )


class SloForm(forms.Form):
    """What a pool promises, in the units people speak in."""

    availability_percent = forms.FloatField(
        label="Availability, %",
        min_value=90,
        max_value=99.999,
        help_text="99.9 is 43 minutes.",
        widget=Number,
    )
    ttft_p99_ms = forms.FloatField(label="TTFT P99, ms", min_value=1, widget=Number)
    tpot_p99_ms = forms.FloatField(
        label="TPOT P99, ms",
        min_value=0.1,
        help_text="33.3 ms is 30 tokens a second.",
        widget=Number,
    )
    error_percent = forms.FloatField(
        label="Errors under, %", min_value=0.001, max_value=50, widget=Number
    )
    owner = forms.CharField(max_length=120, required=False, label="Owner")
    review_on = forms.DateField(
        required=False,
        label="Next review",
        help_text="Each quarter, by the owner.",
        widget=forms.DateInput({"type": "date"}),
    )
    reason = _reason()

    @staticmethod
    def initial_of(promise: Promise) -> dict[str, Any]:
        """Give the form's values for a pool as it is."""
        told = promise.objectives
        return {
            "availability_percent": round(told.availability_ratio * 100, 6),
            "ttft_p99_ms": round(told.ttft_p99_s * 1000, 6),
            "tpot_p99_ms": round(told.tpot_p99_s * 1000, 6),
            "error_percent": round(told.error_ratio * 100, 6),
            "owner": promise.owner,
            "review_on": promise.review_on,
        }

    def changes(self) -> dict[str, Any]:
        """Give what the form says as the service takes it."""
        given = self.cleaned_data
        return {
            "availability_ratio": round(given["availability_percent"] / 100, 9),
            "ttft_p99_s": round(given["ttft_p99_ms"] / 1000, 9),
            "tpot_p99_s": round(given["tpot_p99_ms"] / 1000, 9),
            "error_ratio": round(given["error_percent"] / 100, 9),
            "owner": given["owner"],
            "review_on": given["review_on"],
        }


class WindowForm(forms.Form):
    """A maintenance window from now, or from a time."""

    pool = forms.ChoiceField(required=False, label="Pool")
    kind = forms.ChoiceField(choices=MaintenanceWindow.Kind.choices, label="Kind")
    starts_at = forms.DateTimeField(
        label="Begins (UTC)", widget=forms.DateTimeInput({"type": "datetime-local"})
    )
    hours = forms.ChoiceField(choices=DURATIONS, label="Lasts", initial="2")
    reason = _reason("It is shown beside every figure that leaves this time out.")

    def __init__(self, *args: Any, pools: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices: Any = self.fields["pool"]
        choices.choices = [("", "all pools"), *((slug, slug) for slug in pools)]
        if not self.is_bound:
            self.initial.setdefault("starts_at", f"{timezone.now():%Y-%m-%dT%H:%M}")

    def window(self) -> dict[str, Any]:
        """Give the window as the service takes it."""
        given = self.cleaned_data
        return {
            "pool": given["pool"] or None,
            "kind": given["kind"],
            "starts_at": given["starts_at"],
            "ends_at": given["starts_at"] + timedelta(hours=float(given["hours"])),
        }


class SilenceForm(forms.Form):
    """A silence from now on."""

    rule = forms.ChoiceField(required=False, label="Rule")
    pool = forms.ChoiceField(required=False, label="Pool")
    hours = forms.ChoiceField(choices=DURATIONS, label="For", initial="2")
    reason = _reason("Others wonder why nobody was told.")

    def __init__(self, *args: Any, pools: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fields: Any = self.fields
        fields["rule"].choices = [("", "every rule"), *((r.name, r.title) for r in RULES)]
        fields["pool"].choices = [("", "everything"), *((slug, slug) for slug in pools)]

    def silence(self) -> dict[str, Any]:
        """Give the silence as the service takes it."""
        given = self.cleaned_data
        ends_at = timezone.now() + timedelta(hours=float(given["hours"]))
        return {"rule": given["rule"], "pool": given["pool"], "ends_at": ends_at}


class WebhookForm(forms.Form):
    """A new webhook."""

    name = forms.CharField(max_length=63, label="Name")
    url = forms.CharField(
        max_length=500, label="Address", help_text="http or https; never shown again."
    )
    pool = forms.ChoiceField(required=False, label="Alerts of")
    only_critical = forms.BooleanField(required=False, label="Critical alerts only")
    reason = _reason()

    def __init__(self, *args: Any, pools: list[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        choices: Any = self.fields["pool"]
        choices.choices = [("", "everything"), *((slug, slug) for slug in pools)]
