"""Which headers travel, in each direction. Everything else stays behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

# From client to engine an allow-list: no key, cookie, hop-by-hop or forged internal header can slip
# through. `accept-encoding` is left out on purpose: events must stay readable and prompt.
TO_ENGINE: Final = frozenset(
    {
        b"accept",
        b"accept-language",
        b"anthropic-beta",
        b"anthropic-version",
        b"baggage",
        b"openai-beta",
        b"user-agent",
    }
)

# What routing itself reads.
READ: Final = frozenset(
    {
        b"authorization",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"traceparent",
        b"tracestate",  # sent on with the context it belongs to
        b"transfer-encoding",
        b"x-api-key",
        b"x-request-id",
        b"x-session-id",
        b"x-signalbox-priority",
    }
)
WANTED: Final = TO_ENGINE | READ

# From engine to client a deny-list: framing is ours, credentials and hop-by-hop headers stay.
NOT_TO_CLIENT: Final = frozenset(
    {
        b"alt-svc",
        b"connection",
        b"content-length",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-connection",
        b"retry-after",  # sent on only with the answers it belongs to
        b"server",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"www-authenticate",
        b"x-request-id",
    }
)
OWN_PREFIX: Final = b"x-signalbox-"


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Give the engine's header lines that a client may see."""
    return b"".join(
        [
            b"%b: %b\r\n" % pair
            for pair in headers
            if pair[0] not in NOT_TO_CLIENT and not pair[0].startswith(OWN_PREFIX)
        ]
    )


def find(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Give the first value of a header."""
    return next((value for key, value in headers if key == name), None)


def safe_value(text: str) -> str:
    """Give `text` as a header value: percent-encoded if it is not plain ASCII."""
    return text if text.isascii() and text.isprintable() else quote(text)
