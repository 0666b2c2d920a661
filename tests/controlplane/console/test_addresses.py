"""Addresses of the console: no page stands where a thing with a chosen name has its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.urls import URLResolver, get_resolver

from controlplane.tenants.services.tenants import RESERVED

# Ids of adapters are given, `adp-…`: nobody can choose "upload".
HARMLESS = {"adapters/<slug:public_id>/", "t/<slug:slug>/adapters/<slug:public_id>/"}


def addresses(resolver: Any, before: str = "") -> Iterator[str]:
    for one in resolver.url_patterns:
        if isinstance(one, URLResolver):
            yield from addresses(one, before + str(one.pattern))
        elif "^" not in (address := before + str(one.pattern)):
            yield address


def hidden_name(named: str, other: str) -> str:
    """Give the name whose page at `named` would be hidden by the page at `other`, or nothing."""
    ours, theirs = named.split("/"), other.split("/")
    if len(ours) != len(theirs):
        return ""
    differing = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    is_hidden = all(a.startswith("<") and not a.startswith("<int:") for a, _ in differing)
    return next((b for _, b in differing if "<" not in b), "") if is_hidden else ""


def test_a_page_that_would_hide_a_tenants_reserves_its_name():
    found = list(addresses(get_resolver()))
    assert len(found) > 80
    hidden = {(a, name) for a in found for b in found if (name := hidden_name(a, b))}
    chosen = {(address, name) for address, name in hidden if address not in HARMLESS}
    assert chosen == {("tenants/<slug:slug>/", name) for name in RESERVED}
