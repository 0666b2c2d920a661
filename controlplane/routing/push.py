"""The HTTP client that calls an agent's admin port: signed, with one deadline over everything."""

from __future__ import annotations

import http.client
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from controlplane.routing.signing import signed_headers

TABLE_PATH: Final = "/agent/v1/routing-table"
EXPLAIN_PATH: Final = "/agent/v1/explain"
ANSWER_LIMIT_BYTES: Final = 4 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class AgentUnreachable(Exception):
    """A call to an agent got no complete answer; the message says why."""


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What an agent answered."""

    status: int
    body: bytes


def call_agent(
    admin_url: str, *, method: str, path: str, body: bytes, limit_s: float | None = None
) -> AgentAnswer:
    """Send one signed message and give the answer.

    Raises:
        AgentUnreachable: nobody listens, too slow, or not HTTP.
    """
    limit_s = settings.PUSH_TIMEOUT_S if limit_s is None else limit_s
    deadline = time.monotonic() + limit_s
    headers = signed_headers(method=method, path=path, body=body)
    headers["content-type"] = "application/json"
    connection = _connection(admin_url, limit_s)
    try:
        connection.request(method, path, body=body, headers=headers)
        _limit_reads(connection, deadline)
        response = connection.getresponse()
        return AgentAnswer(response.status, _read(connection, response, deadline))
    except TimeoutError as error:
        raise AgentUnreachable(f"no answer within {limit_s:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise AgentUnreachable(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _connection(admin_url: str, limit_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(admin_url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=limit_s)


def _limit_reads(connection: http.client.HTTPConnection, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    if connection.sock is not None:  # None: the answer was the connection's last, and is buffered
        connection.sock.settimeout(left)


def _read(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, deadline: float
) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_READ_BYTES):
        size += len(part)
        if size > ANSWER_LIMIT_BYTES:
            raise http.client.HTTPException(f"answer above {ANSWER_LIMIT_BYTES} bytes")
        parts.append(part)
        _limit_reads(connection, deadline)
    return b"".join(parts)
