"""Finding, creating and editing one row; edits are by compare-and-set on `version`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.domain.errors import Conflict, Invalid, NotFound

_Row = TypeVar("_Row", bound=models.Model)
MOVED = "moved meanwhile: look at it again, then decide"


def found(rows: models.QuerySet[_Row], kind: str, field: str = "", **named: Any) -> _Row:
    """Give the one row that is named.

    Raises:
        NotFound: or `Invalid` when `field` says which input named it.
    """
    row = rows.filter(**named).first()
    if row is not None:
        return row
    message = f"There is no {kind} {next(iter(named.values()))!r}."
    raise Invalid(message, code="unknown_reference", field=field) if field else NotFound(message)


def check(row: models.Model) -> None:
    """Check a row's columns by its own validators; unique ones are left to the database.

    Raises:
        Invalid: naming the first column at fault.
    """
    try:
        row.clean_fields()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Invalid(f"{field}: {messages[0]}", field=field) from error


def create(row: _Row, taken: str, field: str = "") -> _Row:
    """Insert a row; when its unique columns are taken say so with `taken`."""
    check(row)
    try:
        with transaction.atomic():
            row.save(force_insert=True)
    except IntegrityError as error:
        raise Conflict(taken, code="exists", field=field or None) from error
    return row


def refuse_if_moved(row: Any, expected_version: int | None) -> None:
    """Raise Conflict when the caller saw another version than this one."""
    if expected_version is not None and row.version != expected_version:
        raise Conflict(f"{_name(row)} {MOVED}.", code="stale_version")


def edit(row: _Row, changes: Mapping[str, Any], expected_version: int | None, taken: str) -> None:
    """Write `changes` if nobody wrote since; raise Conflict otherwise."""
    refuse_if_moved(row, expected_version)
    for name, value in changes.items():
        setattr(row, name, value)
    check(row)
    stamp = {"updated_at": timezone.now()} if hasattr(row, "updated_at") else {}
    rows = type(row)._default_manager.filter(pk=row.pk, version=row.version)  # type: ignore[attr-defined]
    try:
        with transaction.atomic():
            written = rows.update(**changes, **stamp, version=F("version") + 1)
    except IntegrityError as error:
        raise Conflict(taken, code="exists") from error
    if not written:
        raise Conflict(f"{_name(row)} {MOVED}.", code="stale_version")
    row.refresh_from_db()


def plain(row: models.Model, names: Iterable[str]) -> dict[str, Any]:
    """Give columns as JSON values for the audit trail; credentials never."""
    values = {}
    for name in names:
        value = getattr(row, name)
        if name == "credential":
            value = "***" if value else ""
        elif isinstance(value, models.Model):
            value = _name(value)
        values[name] = value
    return values


def _name(row: Any) -> str:
    for attribute in ("slug", "public_id", "name"):
        if hasattr(row, attribute):
            return str(getattr(row, attribute))
    return str(row.pk)
