"""Lists sorted by the caller: `?ordering=-created_at,name`, by any column that the database has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from django.core.exceptions import FieldDoesNotExist
from django.db import models
from django.db.models import F
from rest_framework import serializers
from rest_framework.filters import BaseFilterBackend
from rest_framework.request import Request

from controlplane.domain import ordering

# Neither says anything in an order, and a long text is slow to compare.
_NO_ORDER = (models.JSONField, models.TextField, models.BinaryField)


class Ordering(BaseFilterBackend):
    """Sorts by fields of the answer; rows without a value come last in both directions.

    A name that is no such field is refused: an order that is not obeyed would make pages overlap
    in a way the caller does not expect.
    """

    def filter_queryset(
        self, request: Request, queryset: models.QuerySet[Any], view: Any
    ) -> models.QuerySet[Any]:
        """Sort rows if the caller asks for it; the list's own order decides between equals."""
        asked = request.query_params.get(ordering.PARAMETER, "")
        if not asked or view.action != "list":
            return queryset
        known = columns(view.__class__)
        orders = [_expression(known, o) for o in ordering.read(asked, known)]
        if not orders:
            return queryset
        then = queryset.query.order_by or queryset.model._meta.ordering
        return queryset.order_by(*orders, *then, "pk")

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """Tell the schema by which names a list can be sorted."""
        names = sorted(columns(view.__class__))
        if not names or view.action != "list":
            return []
        told = (
            f"Columns to sort by, with commas; a minus turns one round. Any of: {', '.join(names)}."
        )
        schema = {"type": "string"}
        where = {"name": ordering.PARAMETER, "in": "query", "required": False}
        return [where | {"description": told, "schema": schema}]


def _expression(known: Mapping[str, str], order: ordering.Order) -> Any:
    column = F(known[order.name])
    direction = column.desc if order.descending else column.asc
    return direction(nulls_last=True)


@cache
def columns(view: type[Any]) -> dict[str, str]:
    """Give what a view's list can be sorted by: field of the answer → path in the database.

    A view adds what its rows are annotated with in `ordering_more`.
    """
    model = getattr(getattr(view, "queryset", None), "model", None)
    if model is None or view.serializer_class is None:
        return {}
    fields = view.serializer_class().fields
    found = {name: _path(model, field) for name, field in fields.items()}
    more = {name: name for name in getattr(view, "ordering_more", ())}
    return {name: path for name, path in found.items() if path} | more


def _path(model: type[models.Model], field: serializers.Field) -> str:
    """Give the path of a field's column; empty where there is none to sort by."""
    if isinstance(field, serializers.SerializerMethodField) or not field.source_attrs:
        return ""
    *relations, last = field.source_attrs
    try:
        for name in relations:
            relation = model._meta.get_field(name)
            if not (relation.many_to_one or relation.one_to_one) or relation.related_model is None:
                return ""
            model = relation.related_model
        column = model._meta.get_field(last)
    except FieldDoesNotExist:
        return ""
    if not isinstance(column, models.Field) or column.is_relation or isinstance(column, _NO_ORDER):
        return ""
    return "__".join(field.source_attrs)
