"""Versions: what can be served, and what is being served."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import transaction
from django.db.models import F, Prefetch
from django.urls import reverse

from controlplane.audit.asking import Asking
from controlplane.catalog import selectors, services
from controlplane.catalog.filters import VersionFilter
from controlplane.catalog.forms import VersionForm
from controlplane.catalog.models import Model
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
    sorts: ClassVar[dict[str, str]] = {
        "model": "model__name",
        "name": "name",
        "retired_at": "retired_at",
        "engine": "engine",
        "parameters": "parameters",
        "context_tokens": "context_tokens",
        "pool_count": "pool_count",
        "created_at": "created_at",
    }
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


class RegisterVersion(Asking):
    """Register a version of a model; of a name that is new, the model as well."""

    nav_name = "versions"
    title = "Register a version"
    explained = (
        "A version is weights with the engine settings that serve them, and never changes."
        " Next a pool of it is created."
    )
    button = "Register version"

    def form(self, data: Any, **address: Any) -> VersionForm:
        """Give the form."""
        return VersionForm(data)

    @transaction.atomic
    def change(self, form: VersionForm, who: dict[str, Any], **address: Any) -> str:
        """Register it."""
        given = form.cleaned_data
        if not Model.objects.filter(name=given["model"]).exists():
            services.create_model(name=given["model"], kind=given["kind"], **who)
        services.create_version(model=given["model"], name=given["name"], **form.facts(), **who)
        return f"Version {given['name']} of {given['model']} registered."

    def back(self, **address: Any) -> str:
        """Go to all versions."""
        return reverse("versions")
