"""Who acts, why, and where to go afterwards: what every action view needs."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.http import url_has_allowed_host_and_scheme

from controlplane.domain.errors import Invalid

NO_REASON = "from the console, no reason given"
LONGEST_VERSION = 9  # digits


def reason(request: HttpRequest, *, required: bool = False) -> str:
    """Read the reason of an action; where it is required an empty one is refused."""
    text = request.POST.get("reason", "").strip()
    if required and not text:
        raise Invalid("Say why: the reason goes into the audit log.", field="reason")
    return text or NO_REASON


def expected_version(request: HttpRequest) -> int | None:
    """Read the version the form was made from, so that a change meanwhile is noticed."""
    text = request.POST.get("expected_version", "")
    if len(text) > LONGEST_VERSION or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def return_address(request: HttpRequest, fallback: str) -> str:
    """Give the page to return to: a path of our own."""
    wanted = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, request.is_secure())
    return wanted if wanted.startswith("/") and safe else fallback
