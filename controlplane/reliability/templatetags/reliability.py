"""How promises and burn rates read on screen."""

from __future__ import annotations

from django import template

from controlplane.console import quantities
from controlplane.domain.alerts import amount
from controlplane.domain.slos import Standing

register = template.Library()


@register.filter
def times(value: float | None) -> str:
    """Show how many times faster than allowed: `14.4x`, `—` without data."""
    return quantities.NONE if value is None else amount(value, "x")


@register.filter
def promised(standing: Standing) -> str:
    """Show what was promised: `99.9 %`, `300 ms`, `under 0.5 %`."""
    if standing.name == "availability":
        return f"{standing.promised * 100:.6g} %"
    if standing.name == "errors":
        return f"under {standing.promised * 100:.6g} %"
    return quantities.seconds(standing.promised)
