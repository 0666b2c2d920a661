"""How every list behaves: filters and order in the address, problems first, pages, CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

from django.core.paginator import Paginator
from django.db.models import F
from django.http import HttpRequest, HttpResponse, QueryDict

from controlplane.console.mixins import Page
from controlplane.domain import ordering
from controlplane.domain.errors import Invalid
from controlplane.domain.ordering import Order

PAGE_SIZE = 50
CSV_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Sorting:
    """By which columns a list can be sorted, by which it is, and why not by the one asked for."""

    known: frozenset[str]
    order: Order | None = None
    note: str = ""

    @classmethod
    def of(cls, asked: QueryDict, known: Iterable[str]) -> Sorting:
        """Read it from the address; a name that is not known leaves the list's own order."""
        names = frozenset(known)
        try:
            orders = ordering.read(asked.get(ordering.PARAMETER, ""), names)
        except Invalid as problem:
            said = problem.message.partition(". It has")[0].rstrip(".")
            return cls(names, note=f"{said}. It is shown in its own order.")
        return cls(names, orders[0] if orders else None)

    def rows(self, found: Sequence[Any], paths: Mapping[str, str]) -> Sequence[Any]:
        """Sort rows by the path of attributes of the column asked for, if it is one of these."""
        if self.order is None or self.order.name not in paths:
            return found
        path = paths[self.order.name]
        return ordering.in_order(
            found, lambda row: attribute(row, path), descending=self.order.descending
        )

    def queryset(self, found: Any, paths: Mapping[str, str]) -> Any:
        """Sort in the database; where equal, the list's own order goes on to decide."""
        if self.order is None or self.order.name not in paths:
            return found
        path = F(paths[self.order.name])
        first = path.desc if self.order.descending else path.asc
        then = found.query.order_by or found.model._meta.ordering
        return found.order_by(first(nulls_last=True), *then, "pk")


class Listing(Page):
    """A list page over a queryset; `rows` may turn what was found into richer rows.

    Sorted by `?ordering=`: in the database where `sorts` has the column, else among `rows`.
    """

    filter_class: ClassVar[Any] = None
    sorts: ClassVar[Mapping[str, str]] = {}  # column → path of the database
    row_sorts: ClassVar[Mapping[str, str]] = {}  # column → path of attributes
    csv_columns: ClassVar[dict[str, str]] = {}  # column → path of attributes

    def queryset(self) -> Any:
        """Give everything the list is about, in its order."""
        raise NotImplementedError

    def rows(self, found: Any) -> Sequence[Any]:
        """Give the rows to show; by default what was found."""
        return found

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Answer with the page, its live part, or CSV."""
        if request.GET.get("csv"):
            return self._csv()
        return super().get(request, *args, **kwargs)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Filter, order and cut into pages."""
        found, chosen = self._filtered()
        sorting = self._sorting()
        page = Paginator(self._sorted(found, sorting), PAGE_SIZE)
        return super().get_context_data(
            filter=chosen,
            page=page.get_page(self.request.GET.get("page")),
            is_filtered=self._is_filtered(chosen),
            sorting=sorting,
            has_csv=bool(self.csv_columns),
            **kwargs,
        )

    def _sorting(self) -> Sorting:
        return Sorting.of(self.request.GET, [*self.sorts, *self.row_sorts])

    def _sorted(self, found: Any, sorting: Sorting) -> Sequence[Any]:
        return sorting.rows(self.rows(sorting.queryset(found, self.sorts)), self.row_sorts)

    def _filtered(self) -> tuple[Any, Any]:
        found = self.queryset()
        if self.filter_class is None:
            return found, None
        chosen = self.filter_class(self.request.GET, queryset=found)
        chosen.form.auto_id = "filter_%s"  # a dialog on the page may have fields of these names
        return chosen.qs, chosen

    def _is_filtered(self, chosen: Any) -> bool:
        return chosen is not None and any(
            self.request.GET.get(f, "") not in {"", "unknown"} for f in chosen.filters
        )

    def _csv(self) -> HttpResponse:
        found, _ = self._filtered()
        response = HttpResponse(content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="{self.nav_name}.csv"'
        writer = csv.writer(response)
        writer.writerow(self.csv_columns)
        for row in self._sorted(found, self._sorting())[:CSV_LIMIT]:
            writer.writerow([safe(attribute(row, path)) for path in self.csv_columns.values()])
        return response


def attribute(row: Any, path: str) -> Any:
    """Follow a path of attributes; None anywhere ends it."""
    return reduce(lambda value, name: getattr(value, name, None), path.split("."), row)


def safe(value: Any) -> Any:
    """Keep a spreadsheet from taking text for a formula."""
    if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"}:
        return f"'{value}"
    return "" if value is None else value
