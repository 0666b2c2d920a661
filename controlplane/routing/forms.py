"""The form that asks where a request would go."""

from __future__ import annotations

from django import forms

from routing_agent import wire


class ExplainForm(forms.Form):
    """A request that is not sent."""

    model = forms.CharField(max_length=200, label="Model", help_text="As a client would name it.")
    adapter = forms.CharField(
        max_length=200, required=False, label="Adapter", help_text="As its tenant names it."
    )
    tenant = forms.CharField(max_length=63, required=False, label="Tenant")
    session = forms.CharField(max_length=512, required=False, label="Session")
    prompt = forms.CharField(
        max_length=100_000, required=False, label="Prompt", widget=forms.Textarea({"rows": 3})
    )

    def question(self) -> wire.ExplainRequest:
        """Give the form's content as the agents understand it."""
        return wire.ExplainRequest(**{k: v for k, v in self.cleaned_data.items() if v})
