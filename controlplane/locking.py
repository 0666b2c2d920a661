"""Compare-and-set on a row's `version`: optimistic locking for every service that edits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import F, Model
from django.utils import timezone

from controlplane.domain.errors import Conflict, Invalid


def check(row: Model) -> None:
    """Validate a row's own columns.

    Raises:
        Invalid: naming the first field at fault.
    """
    try:
        row.clean_fields()
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Invalid(f"{field}: {' '.join(messages)}", field=field) from error


def change(
    row: Model, changes: Mapping[str, Any], *, expected_version: int | None, called: str
) -> None:
    """Write `changes` to a row and raise its version, if it still is at `expected_version`.

    Only the named columns are written, so edits of different fields do not undo each other.

    Raises:
        Conflict: `stale_version`, when somebody changed or deleted the row meanwhile.
        Invalid: when a value is not allowed.
    """
    for field, value in changes.items():
        setattr(row, field, value)
    check(row)
    columns: dict[str, Any] = {**changes, "version": F("version") + 1}
    if any(field.name == "updated_at" for field in row._meta.concrete_fields):
        columns["updated_at"] = timezone.now()
    rows = type(row)._default_manager.filter(pk=row.pk)
    if expected_version is not None:
        rows = rows.filter(version=expected_version)
    if not rows.update(**columns):
        raise stale(called)
    row.refresh_from_db()


def delete(row: Model, *, expected_version: int | None, called: str) -> None:
    """Delete a row if it still is at `expected_version`.

    Raises:
        Conflict: `stale_version`, when somebody changed or deleted the row meanwhile.
    """
    rows = type(row)._default_manager.filter(pk=row.pk)
    if expected_version is not None:
        rows = rows.filter(version=expected_version)
    if not rows.delete()[0]:
        raise stale(called)


def stale(called: str) -> Conflict:
    """Make the error that says a row moved between reading and writing."""
    return Conflict(f"{called} moved meanwhile: look again, then decide.", code="stale_version")
