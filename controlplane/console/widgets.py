"""Inputs that several pages share."""

from __future__ import annotations

from typing import Any

from django import forms


class Number(forms.NumberInput):
    """An input for a number that shows 300 as `300`, not as `300.0`."""

    def format_value(self, value: Any) -> str | None:
        """Show a number in at most twelve digits, without an exponent where it is not needed."""
        return f"{value:.12g}" if isinstance(value, float) else super().format_value(value)


class AnyYesNo(forms.NullBooleanSelect):
    """A filter by a yes-or-no property, in the words of a filter."""

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        super().__init__(attrs)
        self.choices = [("unknown", "any"), ("true", "yes"), ("false", "no")]
