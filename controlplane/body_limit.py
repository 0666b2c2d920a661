"""Limits what a request may send, before Django reads it.

Django puts a whole body on disk before any view is asked, however long it is and whoever sends it.
So the length is judged here, and an upload, the one thing that may be large, is read only from
somebody known: whether they may upload is the view's own question.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from typing import Any, Final

import structlog
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections

from controlplane.domain.amounts import size
from controlplane.failures import NO_ROOM, STORAGE_FAILED, is_full

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]

# Agents' reports after a long outage are the largest other bodies: `api.agents.BODY_LIMIT_BYTES`.
OTHERS_BYTES: Final = 17 * 1024 * 1024
# Of a body in the temporary folder: as the server takes it, and its files as they are parsed.
COPIES: Final = 2
# Django takes a body of unknown length for an empty one, and forms would say that fields lack.
NO_LENGTH: Final = (
    "The body was sent in chunks, without its length, and none of it was read. Send it with a"
    " `Content-Length` (curl does with `-F` and `--data-binary @FILE`, not with `-T -`)."
)
OVERHEAD_BYTES: Final = 2 * 1024 * 1024  # fields and boundaries of a form
_UPLOADS: Final = re.compile(r"(?:/api/v1/adapters/?|(?:/t/[a-z0-9-]{1,63})?/adapters/upload/)\Z")


class BodyLimit:
    """An ASGI application in front of another, which never sees a body above the limit."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse what is too long or comes from nobody; count the rest as it is read."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if any(name == b"transfer-encoding" for name, _ in scope["headers"]):
            return await _refuse(send, 411, "length_required", NO_LENGTH)
        is_upload = scope["method"] == "POST" and bool(_UPLOADS.match(scope["path"]))
        limit = settings.ADAPTER_LIMIT_BYTES + OVERHEAD_BYTES if is_upload else OTHERS_BYTES
        if _declared(scope) > limit:
            said = f"The body is above {limit} bytes, the most that is read here."
            return await _refuse(send, 413, "too_large", said)
        if is_upload and not await _is_known(scope):
            said = "Sign in, or send a token as `Authorization: Bearer …`, before you upload."
            return await _refuse(send, 401, "unauthorized", said)
        if is_upload and (said := _lacking(_declared(scope))):
            return await _refuse(send, 507, STORAGE_FAILED, said)
        return await self._within_room(scope, _counted(receive, limit), send)

    async def _within_room(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer in words when the disk is full while a body is put there, before any view runs."""
        has_begun = False

        async def sent(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, sent)
        except OSError as error:
            if has_begun or not is_full(error):
                raise
            log.error("body_without_room", path=scope["path"], why=str(error))
            await _refuse(send, 507, STORAGE_FAILED, NO_ROOM)


def _lacking(length: int) -> str:
    """Say what is wrong if an upload does not fit where it is kept while it is read, or ""."""
    folder = tempfile.gettempdir()
    free, needed = shutil.disk_usage(folder).free, COPIES * length + OVERHEAD_BYTES
    if free >= needed:
        return ""
    log.error("upload_without_room", folder=folder, free_bytes=free, needed_bytes=needed)
    return (
        f"The control plane has no room to read this upload: {size(free)} are free in its temporary"
        f" folder, {size(needed)} are needed. Nothing was kept; upload it again once an admin has"
        " made room there."
    )


def _declared(scope: Message) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:19])
    return 0  # no body, or one that ends with the connection: counted as it comes


def _counted(receive: Receive, limit: int) -> Receive:
    """Give the body up to the limit; beyond it the sender counts as gone."""
    seen = 0

    async def next_message() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > limit else message

    return next_message


@sync_to_async
def _is_known(scope: Message) -> bool:
    """Say whether a request carries a token or a session of somebody."""
    from django.contrib.auth import SESSION_KEY

    from controlplane.tenants import keys, selectors

    close_old_connections()
    try:
        request = ASGIRequest(dict(scope), io.BytesIO())
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer":
            of_tenant = text.strip().startswith(keys.TENANT_TOKEN)
            find = selectors.tenant_token if of_tenant else selectors.staff_token
            return find(text.strip()) is not None
        cookie = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
        store = import_module(settings.SESSION_ENGINE).SessionStore
        return cookie is not None and SESSION_KEY in store(cookie)
    finally:
        close_old_connections()


async def _refuse(send: Send, status: int, code: str, message: str) -> None:
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
