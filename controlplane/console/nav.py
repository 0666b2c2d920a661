"""The menu: one entry a page, with the key that goes there after `g`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from django.urls import NoReverseMatch, reverse


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the menu; `name` is both its URL name and what marks it as current."""

    name: str
    label: str
    icon: str
    key: str
    role: str = "viewer"  # who sees it


MENU = (
    Entry("overview", "Overview", "◉", "o"),
    Entry("alerts", "Alerts", "△", "e"),
    Entry("slos", "SLOs", "◎", "b"),
    Entry("fleet", "Fleet", "∿", "f"),
    Entry("pools", "Pools", "▦", "p"),
    Entry("nodes", "Nodes", "▤", "n"),
    Entry("versions", "Versions", "◫", "v"),
    Entry("scaling", "Scaling", "⇕", "c"),
    Entry("adapters", "Adapters", "◪", "d"),
    Entry("rollouts", "Rollouts", "⇶", "w"),
    Entry("which-model", "Which model", "⋔", "m"),
    Entry("routing", "Routing", "⇄", "r"),
    Entry("requests", "Requests", "⇢", "q"),
    Entry("planning", "Planner", "∑", "l"),
    Entry("tenants", "Tenants", "◍", "t"),
    Entry("staff", "Staff", "☺", "u", role="admin"),
    Entry("configuration", "Configuration", "▣", "y", role="admin"),
    Entry("audit", "Audit", "≡", "a"),
    Entry("system", "System", "⚙", "s"),
)

# A tenant's own menu. An entry is shown as soon as an app has a page of its name.
AREA_MENU = (
    Entry("area-usage", "Usage", "∿", "u"),
    Entry("area-adapters", "Adapters", "◫", "a"),
    Entry("area-keys", "Keys", "⚷", "k"),
    Entry("area-models", "Models", "▦", "m"),
    Entry("area-limits", "Limits", "◍", "l"),
    Entry("area-members", "Members", "☺", "e"),
)


def area_menu(slug: str) -> list[tuple[Entry, str]]:
    """Give the menu of a tenant's area: each entry that has a page, with its address."""
    found = []
    for entry in AREA_MENU:
        with suppress(NoReverseMatch):
            found.append((entry, reverse(entry.name, args=[slug])))
    return found
