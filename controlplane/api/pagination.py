"""Pages of lists: `?page=2&page_size=100`."""

from __future__ import annotations

from rest_framework.exceptions import ValidationError
from rest_framework.pagination import PageNumberPagination
from rest_framework.request import Request


class PageNumber(PageNumberPagination):
    """Fifty rows a page, at most five hundred; a size out of bounds is refused, not bent."""

    page_size = 50
    max_page_size = 500
    page_size_query_param = "page_size"

    def get_page_size(self, request: Request) -> int:
        """Give the wanted page size."""
        said = request.query_params.get(self.page_size_query_param)
        if said is None:
            return self.page_size
        if not (said.isascii() and said.isdigit() and 1 <= int(said[:9]) <= self.max_page_size):
            raise ValidationError(
                {"page_size": [f"Must be a whole number from 1 to {self.max_page_size}."]}
            )
        return int(said)
