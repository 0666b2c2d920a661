"""Finding, creating and editing one row; edits are by compare-and-set on `version`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from django.db import IntegrityError, models, transaction

from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.locking import change, check, stale

_Row = TypeVar("_Row", bound=models.Model)


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
        raise stale(name_of(row))


def edit(
    row: models.Model, changes: Mapping[str, Any], expected_version: int | None, taken: str
) -> None:
    """Write `changes`, if the row still is at `expected_version` where one was seen."""
    try:
        with transaction.atomic():
            change(row, changes, expected_version=expected_version, called=name_of(row))
    except IntegrityError as error:
        raise Conflict(taken, code="exists") from error


def plain(row: models.Model, names: Iterable[str]) -> dict[str, Any]:
    """Give columns as JSON values for the audit trail; credentials never."""
    values = {}
    for name in names:
        value = getattr(row, name)
        if name == "credential":
            value = "***" if value else ""
        elif isinstance(value, models.Model):
            value = name_of(value)
        values[name] = value
    return values


def name_of(row: Any) -> str:
    """Give the name a person knows a row by."""
    for attribute in ("slug", "public_id", "name"):
        if hasattr(row, attribute):
            return str(getattr(row, attribute))
    return str(row.pk)
