"""Answers for what no view caught; a full disk is told as such, whoever was writing.

Django reads a body and parses its files before any view is asked: what happens there reaches
`server_error` alone. A disk or database that takes no more is 507, with what to do.
"""

from __future__ import annotations

import errno
import sys
from typing import Final

import structlog
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views import defaults

log = structlog.get_logger(__name__)

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DISK_FULL_STATE: Final = "53100"  # PostgreSQL's disk_full
STORAGE_FAILED: Final = "storage_failed"
NO_ROOM: Final = (
    "The control plane's disk is full, so this could not be taken. Nothing was kept; try again once"
    " an admin has made room there."
)

STALE_FORM: Final = (
    "Nothing was changed: this form was made for another session. You signed in or out in another"
    " window meanwhile, or your browser keeps no cookies. Open the page anew and try again."
)


def is_full(error: BaseException | None) -> bool:
    """Say whether a disk or database took no more, by an error or by what it came from."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if isinstance(error, OperationalError) and "disk is full" in str(error):  # SQLite's words
            return True
        if getattr(error, "sqlstate", None) == _DISK_FULL_STATE:
            return True
        error = error.__cause__
    return False


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer for an error that nobody caught: 507 of a full disk, else 500."""
    if not is_full(sys.exc_info()[1]):
        return defaults.server_error(request)
    log.error("no_room", path=request.path)
    told = {"code": STORAGE_FAILED, "message": NO_ROOM}
    if request.path.startswith("/api/") or "HX-Request" in request.headers:
        return JsonResponse({"error": told}, status=507)
    return HttpResponse(render_to_string("507.html", {"message": NO_ROOM}), status=507)


def stale_form(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer for a form that lacks the token of its reader's session; `reason` is Django's."""
    log.warning("csrf_refused", path=request.path, reason=reason)
    is_part = "HX-Request" in request.headers
    template = "partials/problem_dialog.html" if is_part else "403_csrf.html"
    return render(request, template, {"problem": {"message": STALE_FORM}}, status=403)
