"""Versions: what can be served, and what is being served."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import F, Prefetch

from controlplane.catalog import selectors
from controlplane.catalog.filters import VersionFilter
from controlplane.console.listing import Listing

ORDER = ("-pool_count", "model__name", "name")


class VersionList(Listing):
    """All model versions; those in use first, retired ones last."""

    template_name = "catalog/versions.html"
    fragment_name = "catalog/_versions.html"
    nav_name = "versions"
    title = "Versions"
    api_path = "/api/v1/model-versions/"
    filter_class = VersionFilter
    csv_columns: ClassVar[dict[str, str]] = {
        "model": "model.name",
        "version": "name",
        "engine": "engine",
        "engine_version": "engine_version",
        "parameters": "parameters",
        "dtype": "dtype",
        "context_tokens": "context_tokens",
        "pools": "pool_count",
    }

    def queryset(self) -> Any:
        """Give all versions with the pools that use them and their weights."""
        return (
            selectors.versions()
            .prefetch_related("pools", Prefetch("model__splits"))
            .order_by(F("retired_at").asc(nulls_first=True), *ORDER)
        )
