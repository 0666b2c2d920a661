"""One request as it comes in, and what its head alone says against it."""

from __future__ import annotations

from typing import Final

from routing_agent.core.paths import FORWARDED
from routing_agent.core.table import KeyOwner
from routing_agent.proxy.errors import ErrorAnswer
from routing_agent.wire import Tenant

NOBODY: Final = KeyOwner("", Tenant(name=""))
USUAL: Final = {path.encode(): path for path in FORWARDED}
_JSON: Final = b"application/json"
_UNUSUAL: Final = frozenset({b"transfer-encoding", b"content-encoding"})
METHODS: Final = {b"POST": "POST", b"GET": "GET", b"OPTIONS": "OPTIONS", b"HEAD": "HEAD"}


def path_of(target: bytes) -> str:
    """Give the path of a target, without its query; of no form but the plain one."""
    return target.partition(b"?")[0].decode("latin-1")


def body_fault(incoming: Incoming) -> ErrorAnswer | None:
    """Say what speaks against a body, by its headers."""
    if incoming.method != "POST":
        return None
    given = incoming.headers
    if given.get(b"content-type") == _JSON and not given.keys() & _UNUSUAL:
        return None
    if given.get(b"transfer-encoding", b"chunked").lower() != b"chunked":
        return ErrorAnswer("unsupported_transfer_encoding", "Only 'chunked' is understood.")
    kind = given.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    encoding = given.get(b"content-encoding", b"identity").lower()
    if (kind != b"application/json" and not kind.endswith(b"+json")) or encoding != b"identity":
        return ErrorAnswer(
            "unsupported_media_type", "The body must be plain JSON (content-type application/json)."
        )
    return None


class Incoming:
    """One request as it comes in."""

    __slots__ = ("body", "caller", "extra_lines", "headers", "keep_alive", "method", "parts",
                 "path", "received_at", "refusal", "size", "version")  # fmt: skip

    def __init__(self) -> None:
        self.method = ""
        self.path = ""
        self.version = "1.1"
        self.headers: dict[bytes, bytes] = {}
        self.parts: list[bytes] = []
        self.size = 0
        self.body = b""
        self.caller = NOBODY
        self.refusal: ErrorAnswer | None = None
        self.extra_lines = b""
        self.keep_alive = True
        self.received_at = 0.0
