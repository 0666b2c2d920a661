"""Errors as clients see them: OpenAI JSON with a fixed `error.code`, plain or as an event."""

from __future__ import annotations

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

# code -> (status, OpenAI error type). The codes are part of the contract: never rename one.
CODES: Final[dict[str, tuple[int, str]]] = {
    "invalid_request": (400, "invalid_request_error"),
    "invalid_json": (400, "invalid_request_error"),
    "malformed_http": (400, "invalid_request_error"),
    "missing_api_key": (401, "authentication_error"),
    "invalid_api_key": (401, "authentication_error"),
    "expired_api_key": (401, "authentication_error"),
    "tenant_suspended": (403, "permission_error"),
    "model_not_allowed": (403, "permission_error"),
    "model_not_found": (404, "invalid_request_error"),
    "unknown_path": (404, "invalid_request_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "body_too_large": (413, "invalid_request_error"),
    "unsupported_media_type": (415, "invalid_request_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "queue_full": (429, "rate_limit_error"),
    "overloaded": (429, "rate_limit_error"),
    "headers_too_large": (431, "invalid_request_error"),
    "internal_error": (500, "server_error"),
    "unsupported_transfer_encoding": (501, "invalid_request_error"),
    "engine_failed": (502, "server_error"),
    "adapter_loading": (503, "server_error"),
    "adapter_failed": (503, "server_error"),
    "engine_busy": (503, "server_error"),
    "no_replica": (503, "server_error"),
    "no_table": (503, "server_error"),
    "queue_timeout": (503, "server_error"),
    "shutting_down": (503, "server_error"),
    "engine_too_slow": (504, "server_error"),
}


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """One refusal or failure, ready to be sent plain or as an event."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None
    limit: str | None = None

    @property
    def status(self) -> int:
        """The HTTP status that goes with the code."""
        return CODES[self.code][0]

    def body(self) -> bytes:
        """Give the OpenAI error object."""
        error: dict[str, str | int | None] = {
            "message": self.message,
            "type": CODES[self.code][1],
            "param": self.param,
            "code": self.code,
        }
        if self.limit is not None:
            error["limit"] = self.limit
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """Give the error as a server-sent event: how a stream that has begun says it failed."""
        return b"data: " + self.body() + b"\n\n"

    def headers(self) -> bytes:
        """Give the header lines that go with this error."""
        if self.retry_after_s is None:
            return b""
        return b"retry-after: %d\r\n" % max(math.ceil(self.retry_after_s), 1)


def reason_phrase(status: int) -> str:
    """Give the words behind a status code."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


# First lines of answers, made once.
STATUS_LINES: Final = {
    status: f"HTTP/1.1 {status} {reason_phrase(status)}\r\n".encode() for status in range(200, 600)
}
