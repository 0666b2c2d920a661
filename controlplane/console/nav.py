"""The menu: one entry a page, with the key that goes there after `g`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the menu; `name` is both its URL name and what marks it as current."""

    name: str
    label: str
    icon: str
    key: str


MENU = (
    Entry("overview", "Overview", "◉", "o"),
    Entry("fleet", "Fleet", "∿", "f"),
    Entry("pools", "Pools", "▦", "p"),
    Entry("nodes", "Nodes", "▤", "n"),
    Entry("versions", "Versions", "◫", "v"),
    Entry("routing", "Routing", "⇄", "r"),
    Entry("requests", "Requests", "⇢", "q"),
    Entry("planning", "Planner", "∑", "l"),
    Entry("tenants", "Tenants", "◍", "t"),
    Entry("audit", "Audit", "≡", "a"),
    Entry("system", "System", "⚙", "s"),
)
