"""The same `Idempotency-Key` with the same request gets the same answer, and acts once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.api.models import IdempotentAnswer
from controlplane.domain.errors import Conflict, Invalid

HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotency-Replayed"
KEPT_FOR = timedelta(hours=24)
_KEPT_HEADERS = ("ETag", "x-signalbox-revision")
_SHOWN_ONCE = ("plaintext", "invitation")


def once(request: Request, run: Callable[[], Response]) -> Response:
    """Run a write, or give the answer it got before.

    The answer is stored in the write's own transaction: both are there or neither. Of two
    simultaneous requests the second waits for the first at the unique constraint. An error is not
    stored: nothing happened, so a repeat tries again.

    Raises:
        Conflict: when the key was used for another request.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return run()
    if not 1 <= len(key) <= 200:
        raise Invalid(f"{HEADER} has 1 to 200 characters.", field=HEADER)
    caller, sha256 = caller_of(request), request_digest(request)
    IdempotentAnswer.objects.filter(created_at__lt=timezone.now() - KEPT_FOR).delete()
    before = _stored(caller, key)
    if before is not None:
        return _replay(before, sha256)
    try:
        with transaction.atomic():
            answer = _claim(caller, key, sha256)
            response = run()
            _keep(answer, response)
    except _KeyTakenError:
        return _replay(IdempotentAnswer.objects.get(caller=caller, key=key), sha256)
    return response


def caller_of(request: Request) -> str:
    """Give the caller whose keys these are: keys of different callers never meet."""
    kind = "token" if request.auth is not None else "user"
    return f"{kind}:{request.user.get_username()}"


def request_digest(request: Request) -> str:
    """Give the SHA-256 of what a request asks for."""
    body = json.dumps(request.data, sort_keys=True, separators=(",", ":"), default=_told)
    return hashlib.sha256(
        f"{request.method}\n{request.get_full_path()}\n{body}".encode()
    ).hexdigest()


def _told(file: Any) -> str:
    """Give what stands for an uploaded file: reading it again could take minutes."""
    return f"{file.name} {file.size}"


class _KeyTakenError(Exception):
    """A simultaneous request with the same key came first."""


def _claim(caller: str, key: str, sha256: str) -> IdempotentAnswer:
    try:
        with transaction.atomic():
            return IdempotentAnswer.objects.create(caller=caller, key=key, request_sha256=sha256)
    except IntegrityError as error:
        raise _KeyTakenError from error


def _stored(caller: str, key: str) -> IdempotentAnswer | None:
    return IdempotentAnswer.objects.filter(caller=caller, key=key).first()


def _keep(answer: IdempotentAnswer, response: Response) -> None:
    data = response.data
    if isinstance(data, dict):
        data = {**data, **{name: None for name in _SHOWN_ONCE if name in data}}
    answer.status = response.status_code
    answer.body = JSONRenderer().render(data).decode() if data is not None else ""
    answer.headers = {name: response[name] for name in _KEPT_HEADERS if name in response}
    answer.save()


def _replay(before: IdempotentAnswer, sha256: str) -> Response:
    if before.request_sha256 != sha256:
        raise Conflict(
            f"This {HEADER} was used for another request: take a new key for a new request.",
            code="idempotency_key_reused",
        )
    data = json.loads(before.body) if before.body else None
    return Response(data, status=before.status, headers={**before.headers, REPLAYED_HEADER: "true"})
