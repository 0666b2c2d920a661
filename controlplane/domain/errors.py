"""What services raise: each error says what happened and what to do, with a stable code."""

from __future__ import annotations

from typing import Any, ClassVar


class ProblemError(Exception):
    """A request that cannot be carried out, told to the reader.

    `code` is stable and for programs, `message` is for people, `field` names the input at fault,
    `status` is the HTTP status it becomes; `details` is more for programs, as JSON values.
    """

    status: ClassVar[int] = 400
    default_code: ClassVar[str] = "invalid"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        details: Any = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.field = field
        self.details = details


class Invalid(ProblemError):
    """An input is wrong; the message names it and says what is allowed."""


class Unauthorized(ProblemError):
    """The caller's token is missing, unknown, expired or used up."""

    status = 401
    default_code = "unauthorized"


class NotFound(ProblemError):
    """What was named does not exist."""

    status = 404
    default_code = "not_found"


class Conflict(ProblemError):
    """Something else is there already, or moved meanwhile: look again, then decide."""

    status = 409
    default_code = "conflict"


class NoRoom(ProblemError):
    """The disk takes no more; the message says whose, and that nothing was kept."""

    status = 507
    default_code = "storage_failed"


class TooLarge(ProblemError):
    """More was sent than is taken; the message names the limit."""

    status = 413
    default_code = "too_large"


class Unavailable(ProblemError):
    """Something this needs does not answer at present; trying again later may help."""

    status = 503
    default_code = "unavailable"
