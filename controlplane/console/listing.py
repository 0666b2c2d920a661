"""How every list behaves: filters in the address, problems first, pages of fifty, CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse

from controlplane.console.mixins import Page

PAGE_SIZE = 50
CSV_LIMIT = 10_000


class Listing(Page):
    """A list page over a queryset; `rows` may turn what was found into richer rows."""

    filter_class: ClassVar[Any] = None
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
        page = Paginator(self.rows(found), PAGE_SIZE).get_page(self.request.GET.get("page"))
        return super().get_context_data(
            filter=chosen, page=page, is_filtered=self._is_filtered(chosen), **kwargs
        )

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
        for row in list(self.rows(found))[:CSV_LIMIT]:
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
