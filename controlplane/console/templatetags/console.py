"""Status chips, quantities with their unit, and times: the one place that says how they look."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from controlplane.console import quantities
from controlplane.domain.ordering import Order

register = template.Library()

# Code: (label, icon, tone). Shape and word tell what colour alone must not.
CHIPS = {
    "healthy": ("healthy", "✓", "healthy"),
    "ready": ("ready", "✓", "healthy"),
    "applied": ("applied", "✓", "healthy"),
    "current": ("current", "✓", "healthy"),
    "active": ("active", "✓", "healthy"),
    "ok": ("ok", "✓", "healthy"),
    "serving": ("serving", "✓", "healthy"),
    "running": ("running", "✓", "healthy"),
    "stopping": ("stopping", "⤓", "paused"),
    "pending": ("pending", "↻", "progressing"),
    "loading": ("loading", "↻", "progressing"),
    "warming": ("warming", "↻", "progressing"),
    "waking": ("waking", "↻", "progressing"),
    "fetching": ("fetching", "↻", "progressing"),
    "loaded": ("loaded", "✓", "healthy"),
    "unloading": ("unloading", "⤓", "paused"),
    "deleting": ("being removed", "⤓", "paused"),
    "unplaced": ("not loaded", "▲", "warning"),
    "incoming": ("being loaded", "↻", "progressing"),
    "behind": ("behind", "▲", "warning"),
    "ahead": ("ahead", "▲", "warning"),
    "warning": ("warning", "▲", "warning"),
    "ending": ("ends soon", "▲", "warning"),
    "late": ("late", "▲", "warning"),
    "degraded": ("degraded", "▲", "warning"),
    "unreachable": ("unreachable", "✕", "failed"),
    "refused": ("refused", "✕", "failed"),
    "invalid": ("invalid", "✕", "failed"),
    "failed": ("failed", "✕", "failed"),
    "down": ("down", "✕", "failed"),
    "failing": ("failing", "✕", "failed"),
    "ejected": ("ejected", "✕", "failed"),
    "halted": ("halted", "✕", "failed"),
    "revoked": ("revoked", "✕", "stopped"),
    "expired": ("expired", "○", "stopped"),
    "critical": ("critical", "✕", "failed"),
    "firing": ("firing", "✕", "failed"),
    "exhausted": ("exhausted", "✕", "failed"),
    "broken": ("broken", "✕", "failed"),
    "kept": ("kept", "✓", "healthy"),
    "resolved": ("resolved", "✓", "healthy"),
    "delivered": ("delivered", "✓", "healthy"),
    "waiting": ("waiting", "↻", "progressing"),
    "silenced": ("silenced", "❚❚", "paused"),
    "maintenance": ("maintenance", "❚❚", "paused"),
    "no-data": ("no data", "?", "unknown"),
    "draining": ("draining", "⤓", "paused"),
    "paused": ("paused", "❚❚", "paused"),
    "suspended": ("suspended", "❚❚", "paused"),
    "sleeping": ("sleeping", "❚❚", "paused"),
    "superseded": ("superseded", "○", "stopped"),
    "stopped": ("stopped", "○", "stopped"),
    "retired": ("retired", "○", "stopped"),
    "empty": ("no replicas", "○", "stopped"),
    "off": ("not configured", "○", "stopped"),
    "silent": ("silent", "?", "unknown"),
    "stale": ("stale", "?", "unknown"),
    "never": ("never seen", "?", "unknown"),
}


@register.simple_tag
def chip(code: str, label: str = "") -> SafeString:
    """Show a status as icon, word and tone."""
    word, icon, tone = CHIPS.get(str(code), (str(code) or "unknown", "?", "unknown"))
    return format_html(
        '<span class="chip {}"><span aria-hidden="true">{}</span> {}</span>',
        tone,
        icon,
        label or word,
    )


for _show in (
    quantities.seconds,
    quantities.age,
    quantities.latency,
    quantities.percent,
    quantities.size,
    quantities.count,
    quantities.counted,
    quantities.given,
    quantities.result,
):
    register.filter(_show.__name__, _show)


@register.simple_tag
def ago(moment: datetime | float | None, none: str = "never") -> SafeString | str:
    """Show a time; the browser turns it into an age and keeps that running."""
    if moment is None:
        return none
    if isinstance(moment, (int, float)):
        moment = datetime.fromtimestamp(moment, UTC)
    moment = moment.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        moment.isoformat(timespec="seconds"),
        f"{moment:%Y-%m-%d %H:%M:%S}",
        f"{moment:%Y-%m-%d %H:%M:%S}",
    )


@register.filter
def clock(moment: datetime) -> str:
    """Show a time of day in UTC; of another day with its date."""
    moment = moment.astimezone(UTC)
    is_today = moment.date() == datetime.now(UTC).date()
    return f"{moment:%H:%M:%S}" if is_today else f"{moment:%Y-%m-%d %H:%M:%S}"


@register.filter
def span(value: float) -> str:
    """Show how long something lasted in whole seconds: `95 s`, longer ones as minutes."""
    return f"{value:.0f} s" if value < 120 else quantities.seconds(value)


@register.filter
def pretty(value: Any) -> str:
    """Show a JSON value as text."""
    return json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True, default=str)


@register.filter
def get(mapping: dict[Any, Any], key: Any) -> Any:
    """Look a key up in a template."""
    return mapping.get(key) if mapping else None


@register.simple_tag(takes_context=True)
def query(context: Any, **changes: Any) -> str:
    """Give this page's query string with some values changed; an empty value leaves one out."""
    values = context["request"].GET.copy()
    for name, value in changes.items():
        values.pop(name, None)
        if value not in ("", None):
            values[name] = str(value)
    return f"?{values.urlencode()}"


@register.simple_tag(takes_context=True)
def head(context: Any, name: str, label: str, unit: str = "", *, num: bool = False) -> SafeString:
    """Give the head of a column: a link that sorts by it, where the list can, and the direction.

    A first click puts the largest number, newest time or first letter on top, a second one turns
    it round, a third goes back to the list's own order.
    """
    sorting = context.get("sorting")
    below = format_html('<span class="unit">{}</span>', unit) if unit else ""
    tone = SafeString(' class="num"') if num else ""
    if sorting is None or name not in sorting.known:
        return format_html('<th scope="col"{}>{}{}</th>', tone, label, below)
    now = sorting.order if sorting.order and sorting.order.name == name else None
    kind = "number" if num else "time" if name in _TIMES or name.endswith("_at") else "text"
    high = kind != "text"  # what comes first at the first click
    steps = [None, Order(name, high), Order(name, not high)]
    following = steps[(steps.index(now) + 1) % len(steps)]
    return format_html(
        '<th scope="col"{}{}><a class="sort" href="{}" title="{}">{}{}</a>{}</th>',
        tone,
        _direction(now),
        query(context, ordering=following or "", page=""),
        f"Sort: {_FIRST[kind][following.descending]}" if following else "Back to its own order",
        label,
        _arrow(now),
        below,
    )


_TIMES = {"at", "since"}
_FIRST = {  # what comes first, rising and falling
    "number": ("smallest first", "largest first"),
    "time": ("oldest first", "newest first"),
    "text": ("first to last", "last to first"),
}


def _direction(now: Order | None) -> SafeString | str:
    if now is None:
        return ""
    return format_html(' aria-sort="{}"', "descending" if now.descending else "ascending")


def _arrow(now: Order | None) -> SafeString | str:
    if now is None:
        return ""
    return format_html(' <span aria-hidden="true">{}</span>', "▼" if now.descending else "▲")


@register.filter
def in_billions(value: float | None) -> str:
    """Show a number of parameters: `7.62 B`, `405 B`, `22 M`."""
    if value is None:
        return quantities.NONE
    if value >= 1e9:
        return f"{quantities.three(value / 1e9)} B"
    return f"{quantities.three(value / 1e6)} M"


@register.filter
def change_words(event: Any) -> str:
    """Say in a few words what an event changed."""
    before, after = event.before, event.after
    if not isinstance(before, dict) or not isinstance(after, dict):
        return "created" if before is None else "removed" if after is None else "changed"
    names = [n for n in sorted({*before, *after}) if before.get(n) != after.get(n)]
    if len(names) == 1 and not isinstance(after.get(names[0]), (dict, list)):
        return f"{words(names[0])}: {_plain(before.get(names[0]))} → {_plain(after.get(names[0]))}"
    return ", ".join(map(words, names[:4])) + (" …" if len(names) > 4 else "") or "no difference"


def _plain(value: Any) -> str:
    """Show a value as people write it: absent is `none`, a switch is `on` or `off`."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


@register.filter
def gpu_memory(gpu: Any) -> str:
    """Show a GPU's memory, used of all, in whole GiB."""
    total = gpu.memory_bytes / 2**30
    if gpu.memory_used_bytes is None:
        return f"{total:.0f} GiB"
    return f"{gpu.memory_used_bytes / 2**30:.0f} / {total:.0f} GiB"


@register.filter
def words(name: str) -> str:
    """Show a name from the code as words: `least_tokens` → `least tokens`."""
    return str(name).replace("_", " ")


@register.filter
def term(name: str, value: float | None) -> str:
    """Show a named term with the unit that its name ends in: `wait 120 ms`."""
    if name.endswith("_per_s"):
        return f"{words(name.removesuffix('_per_s'))} {quantities.count(value)}/s"
    if name.endswith("_s"):
        return f"{words(name.removesuffix('_s'))} {quantities.seconds(value)}"
    return f"{words(name)} {quantities.count(value)}"
