"""One shape for every error: `{"error": {"code", "message", "field"?, "details"?}}`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import DataError, IntegrityError, OperationalError
from django.db.models import ProtectedError, RestrictedError
from django.http import Http404, HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions, status
from rest_framework.response import Response
from rest_framework.views import set_rollback

from controlplane.domain.errors import ProblemError
from controlplane.failures import NO_ROOM, STORAGE_FAILED, is_full

log = structlog.get_logger(__name__)

_CODES = {
    status.HTTP_400_BAD_REQUEST: "invalid",
    status.HTTP_401_UNAUTHORIZED: "unauthorized",
    status.HTTP_403_FORBIDDEN: "forbidden",
    status.HTTP_404_NOT_FOUND: "not_found",
    status.HTTP_405_METHOD_NOT_ALLOWED: "method_not_allowed",
    status.HTTP_406_NOT_ACCEPTABLE: "not_acceptable",
    status.HTTP_415_UNSUPPORTED_MEDIA_TYPE: "unsupported_media_type",
    status.HTTP_429_TOO_MANY_REQUESTS: "too_many_requests",
}


def body(
    code: str, message: str, *, field: str | None = None, details: Any = None
) -> dict[str, Any]:
    """Give the body of an error."""
    error: dict[str, Any] = {"code": code, "message": message}
    if field is not None:
        error["field"] = field
    if details is not None:
        error["details"] = details
    return {"error": error}


def handle(error: Exception, context: dict[str, Any]) -> Response:
    """Turn whatever a view raised into an answer that says what happened and what to do."""
    set_rollback()
    if is_full(error) and not isinstance(error, ProblemError):
        log.error("no_room", view=type(context.get("view")).__name__, why=str(error))
        return Response(body(STORAGE_FAILED, NO_ROOM), status=507)
    for kinds, answer in _ANSWERS:
        if isinstance(error, kinds):
            return answer(error)
    log.exception("api_failed", view=type(context.get("view")).__name__, exc_info=error)
    return Response(
        body("internal", "Signalbox failed at this; the cause is in the log of the web process."),
        status=500,
    )


@csrf_exempt
def not_found(request: HttpRequest) -> JsonResponse:
    """Answer for paths under /api/ that mean nothing."""
    message = f"There is nothing at {request.path}; /api/docs/ lists what there is."
    return JsonResponse(body("not_found", message), status=404)


def _problem(error: ProblemError) -> Response:
    told = body(error.code, error.message, field=error.field, details=error.details)
    return Response(told, status=error.status)


def _validation(error: exceptions.ValidationError) -> Response:
    fields = flatten(error.detail)
    name, messages = next(iter(fields.items()), ("", ["The input is not valid."]))
    message = " ".join(messages)
    if not name:
        return Response(body("invalid", message), status=400)
    return Response(body("invalid", f"{name}: {message}", field=name, details=fields), status=400)


def _api_exception(error: exceptions.APIException) -> Response:
    code = _CODES.get(error.status_code, "invalid")
    if isinstance(error, exceptions.ParseError):
        code = "malformed_json"
    response = Response(body(code, str(error.detail)), status=error.status_code)
    challenge = getattr(error, "auth_header", None)
    if challenge:
        response["WWW-Authenticate"] = challenge
    wait = getattr(error, "wait", None)
    if wait:
        response["Retry-After"] = str(int(wait))
    return response


def _fixed(code: str, message: str, http_status: int) -> Callable[[Any], Response]:
    def answer(error: Exception) -> Response:
        return Response(body(code, message), status=http_status)

    return answer


def _busy(error: Exception) -> Response:
    log.warning("database_unavailable", error=str(error))
    response = Response(
        body("database_unavailable", "The database is busy or unreachable: try again shortly."),
        status=503,
    )
    response["Retry-After"] = "1"
    return response


_IN_USE = _fixed("in_use", "Something else still refers to this: remove that first.", 409)
_ANSWERS: tuple[tuple[Any, Callable[[Any], Response]], ...] = (
    (ProblemError, _problem),
    (exceptions.ValidationError, _validation),
    (exceptions.APIException, _api_exception),
    (Http404, _fixed("not_found", "There is no such thing here.", 404)),
    (
        RequestDataTooBig,
        _fixed("too_large", "The body is above 2.5 MB, the limit of this API.", 413),
    ),
    (PermissionDenied, _fixed("forbidden", "This is not allowed.", 403)),
    ((ProtectedError, RestrictedError), _IN_USE),
    (IntegrityError, _fixed("conflict", "Something of this name is there already.", 409)),
    (RecursionError, _fixed("malformed_json", "The body is nested too deeply.", 400)),
    (DataError, _fixed("invalid", "A value is out of the range that can be stored.", 400)),
    (OperationalError, _busy),
)


def flatten(detail: Any, path: str = "") -> dict[str, list[str]]:
    """Give DRF's nested messages as one list for each dotted field; "" is the whole body."""
    if isinstance(detail, dict):
        found: dict[str, list[str]] = {}
        for name, inner in detail.items():
            found |= flatten(inner, _below(path, name))
        return found
    if isinstance(detail, list) and any(isinstance(item, dict | list) for item in detail):
        found = {}
        for index, inner in enumerate(detail):
            found |= flatten(inner, f"{path}[{index}]")
        return found
    return {path: [str(item) for item in (detail if isinstance(detail, list) else [detail])]}


def _below(path: str, name: Any) -> str:
    if name == "non_field_errors":
        return path
    if isinstance(name, int):
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else str(name)
