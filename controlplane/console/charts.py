"""Answers chart requests: a figure with an ETag, or why there is none; and embeds the first one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as a page shows it: where its figure comes from, what it says in words.

    Without a first payload the browser asks for the figure at once.
    """

    id: str
    title: str
    url: str
    payload: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_id(self) -> str:
        """Give the id of the element that carries the first figure."""
        return f"first-{self.id}"


def answer(request: HttpRequest, body: bytes) -> HttpResponse:
    """Answer with JSON, or 304 when the browser already draws this."""
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    if request.headers.get("If-None-Match") == etag:
        return HttpResponseNotModified()
    return HttpResponse(
        body, content_type="application/json", headers={"ETag": etag, "Cache-Control": "no-cache"}
    )


def absent(reason: str) -> dict[str, Any]:
    """Give the payload of a chart without data; the reason is shown in its place."""
    return {"state": "none", "reason": reason}
