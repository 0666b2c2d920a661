"""Inputs that several pages share."""

from __future__ import annotations

from typing import Any

from django import forms


class AnyYesNo(forms.NullBooleanSelect):
    """A filter by a yes-or-no property, in the words of a filter."""

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        super().__init__(attrs)
        self.choices = [("unknown", "any"), ("true", "yes"), ("false", "no")]
