"""What only agents call: register, report, lease, pull, fetch. Plain views, msgspec messages.

Every answer is JSON; errors have the shape of the whole API. The one-time token, the agent's token
and our signature are the only ways to prove anything here: no session, no cookie, no CSRF.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    JsonResponse,
    StreamingHttpResponse,
)
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from controlplane.api import errors
from controlplane.catalog.selectors import stored_file
from controlplane.catalog.uploads import folder_of
from controlplane.domain.errors import Invalid, NotFound, ProblemError, Unauthorized
from controlplane.rollouts import services as rollouts
from controlplane.routing import services, signing
from controlplane.tenants import services as tenants
from controlplane.usage import services as usage
from routing_agent import wire

# 5,000 usage records of a long outage are 2 MB.
BODY_LIMIT_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 256 * 1024  # of a file: what one agent costs in memory while it fetches

_M = TypeVar("_M", bound=wire.Message)
_View = Callable[..., HttpResponseBase]


def _endpoint(method: str) -> Callable[[_View], _View]:
    """Make a view that only agents call: one method, problems as JSON, no CSRF."""

    def decorate(view: _View) -> _View:
        @csrf_exempt
        def answer(request: HttpRequest, **parts: Any) -> HttpResponseBase:
            if request.method != method:
                told = errors.body("method_not_allowed", f"Only {method} here.")
                return JsonResponse(told, status=405, headers={"Allow": method})
            try:
                return view(request, **parts)
            except ProblemError as error:
                told = errors.body(error.code, error.message, field=error.field)
                return JsonResponse(told, status=error.status)

        return answer

    return decorate


def _message(request: HttpRequest, kind: type[_M]) -> _M:
    """Read the body as a message of the wire schema."""
    content = request.read(BODY_LIMIT_BYTES + 1)
    if len(content) > BODY_LIMIT_BYTES:
        raise Invalid(f"The message is above {BODY_LIMIT_BYTES} bytes.", code="too_large")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Invalid(f"The message cannot be read: {error}", code="malformed") from error


def _token(request: HttpRequest) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("Send the agent's token as `Authorization: Bearer …`.")
    return token.strip()


def _json(message: wire.Message) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(message), content_type="application/json")


@_endpoint("POST")
def register(request: HttpRequest) -> HttpResponse:
    """Give an agent its identity for a one-time token."""
    return _json(services.register_agent(request=_message(request, wire.RegisterRequest)))


@_endpoint("POST")
def report(request: HttpRequest) -> HttpResponse:
    """Book a heartbeat and say what is newest."""
    token = _token(request)
    told = _message(request, wire.Report)
    acknowledged = records_acknowledged = pairs_acknowledged = 0
    if told.usage or told.records or told.shadow_pairs:
        agent = services.authenticate(token)
        if told.usage:
            acknowledged = usage.book_usage(agent=agent, records=told.usage)
        if told.records:
            records_acknowledged = usage.book_records(agent=agent, records=told.records)
        if told.shadow_pairs:
            pairs_acknowledged = rollouts.book_pairs(told.shadow_pairs)
    reply = services.book_report(report=told, token=token, usage_acknowledged=acknowledged)
    return _json(
        msgspec.structs.replace(
            reply,
            records_acknowledged=records_acknowledged,
            shadow_pairs_acknowledged=pairs_acknowledged,
        )
    )


@_endpoint("POST")
def leases(request: HttpRequest) -> HttpResponse:
    """Share out limits that hold over several agents. Requests wait for this: nothing but it."""
    agent = services.authenticate(_token(request))
    asked = _message(request, wire.LeaseRequest)
    if asked.agent != agent.public_id:
        raise Unauthorized(
            f"The token belongs to agent {agent.public_id}, the call to {asked.agent!r}.",
            code="wrong_agent",
        )
    return _json(tenants.lease_limits(agent=agent.public_id, request=asked))


@_endpoint("GET")
def table(request: HttpRequest) -> HttpResponse:
    """Give the newest table, signed like a push."""
    row = services.table_for_agent(token=_token(request))
    content = bytes(row.table)
    headers = signing.signed_headers(method="GET", path=request.path, body=content)
    return HttpResponse(content, content_type="application/json", headers=headers)


@_endpoint("GET")
def adapter_file(request: HttpRequest, digest: str, name: str) -> HttpResponseBase:
    """Give one file of an adapter that is in the newest table, as a stream."""
    services.authenticate(_token(request))
    stored = stored_file(digest, name)
    file = folder_of(digest) / name
    if stored is None or not file.is_file():
        raise NotFound(f"No adapter in the table has a file {name!r} under this digest.")
    return StreamingHttpResponse(
        _pieces(file),
        content_type="application/octet-stream",
        headers={"Content-Length": str(file.stat().st_size), "Cache-Control": "no-store"},
    )


async def _pieces(file: Path) -> AsyncIterator[bytes]:
    handle = await asyncio.to_thread(file.open, "rb")
    try:
        while piece := await asyncio.to_thread(handle.read, PIECE_BYTES):
            yield piece
    finally:
        handle.close()


urlpatterns = [
    path("adapters/<slug:digest>/<str:name>", adapter_file, name="agent-adapter-file"),
    path("register", register, name="agent-register"),
    path("report", report, name="agent-report"),
    path("leases", leases, name="agent-leases"),
    path("table", table, name="agent-table"),
]
