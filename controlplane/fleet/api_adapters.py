"""REST: tenants' LoRA adapters, with where each is loaded."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.parsers import JSONParser
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.catalog import selectors, services
from controlplane.catalog.models import Adapter, AdapterVersion
from controlplane.catalog.parsers import AdapterParser, incoming
from controlplane.domain.errors import Invalid
from controlplane.fleet.adapter_rows import AdapterRow, adapter_row, adapter_rows, on_replica
from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.tenants.models import TenantRole

MEMBER, ADMIN = TenantRole.MEMBER.value, TenantRole.ADMIN.value


class ProgressSerializer(serializers.Serializer):
    """How far an adapter is over all replicas that are to hold it."""

    code = serializers.CharField(
        help_text="serving, degraded, loading, failed, stale, unplaced or deleting."
    )
    loaded = serializers.IntegerField()
    wanted = serializers.IntegerField()
    said = serializers.CharField()


class AdapterVersionSerializer(ReadOnlySerializer):
    """One accepted upload."""

    target_modules = serializers.ListField(child=serializers.CharField())

    class Meta:
        model = AdapterVersion
        fields = [
            "number",
            "state",
            "digest",
            "served_name",
            "size_bytes",
            "rank",
            "alpha",
            "target_modules",
            "dtype",
            "base_name",
            "created_at",
            "created_by",
            "removed_at",
        ]


class PlacementSerializer(serializers.Serializer):
    """An adapter's version on one replica."""

    replica = serializers.CharField()
    version = serializers.IntegerField()
    wanted = serializers.BooleanField(help_text="False: it is being unloaded.")
    stage = serializers.CharField(
        allow_null=True, help_text="fetching, loading, loaded, failed, unloading; null: not told."
    )
    message = serializers.CharField(allow_blank=True)
    stage_since = serializers.DateTimeField(allow_null=True)
    heard_at = serializers.DateTimeField(
        allow_null=True, help_text="When the agent of the replica's node last spoke of it."
    )
    is_stale = serializers.BooleanField()
    attempts = serializers.IntegerField()


class MissingSerializer(serializers.Serializer):
    """A replica of the model that does not get the adapter."""

    replica = serializers.CharField()
    reason = serializers.CharField()


class AdapterSerializer(ReadOnlySerializer):
    """A tenant's LoRA adapter."""

    id = serializers.CharField(source="public_id")
    tenant = serializers.CharField(source="tenant.slug")
    model = serializers.CharField(source="model.name")
    shared_with = serializers.SerializerMethodField()
    versions = AdapterVersionSerializer(many=True)
    progress = serializers.SerializerMethodField()
    replicas = serializers.SerializerMethodField()
    missing = serializers.SerializerMethodField()

    class Meta:
        model = Adapter
        fields = [
            "id",
            "tenant",
            "name",
            "model",
            "pinned",
            "shared_with",
            "progress",
            "replicas",
            "missing",
            "versions",
            "last_used_at",
            "created_at",
            "created_by",
            "updated_at",
            "deleted_at",
            "version",
        ]

    def _row(self, adapter: Adapter) -> AdapterRow:
        rows: dict[int, AdapterRow] = self.context["rows"]
        if adapter.pk not in rows:
            rows[adapter.pk] = adapter_row(adapter)
        return rows[adapter.pk]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_shared_with(self, adapter: Adapter) -> list[str]:
        """Give the tenants that may call it too; a guest learns of no other guest."""
        slugs = sorted(tenant.slug for tenant in adapter.shared_with.all())
        callers = self.context["view"].callers_tenants
        if callers is None or adapter.tenant.slug in callers:
            return slugs
        return [slug for slug in slugs if slug in callers]

    @extend_schema_field(ProgressSerializer)
    def get_progress(self, adapter: Adapter) -> Any:
        """Give how far its active version is."""
        return ProgressSerializer(self._row(adapter).progress).data

    @extend_schema_field(PlacementSerializer(many=True))
    def get_replicas(self, adapter: Adapter) -> Any:
        """Give each replica that holds it or is to hold it."""
        numbers = {version.pk: version.number for version in adapter.versions.all()}
        return [
            {
                "replica": placement.replica.public_id,
                "version": numbers[placement.version_id],
                "wanted": placement.wanted,
                "stage": placement.stage or None,
                "message": placement.message,
                "stage_since": placement.stage_since,
                "heard_at": placement.heard_at,
                "is_stale": on_replica(placement).is_stale,
                "attempts": placement.attempts,
            }
            for placement in self._row(adapter).placements
        ]

    @extend_schema_field(MissingSerializer(many=True))
    def get_missing(self, adapter: Adapter) -> Any:
        """Give each replica of its model that does not get it, and why."""
        gaps = self._row(adapter).left_out
        return [{"replica": gap.replica, "reason": gap.reason} for gap in gaps]


class AdapterInput(ChangeInput):
    """An upload's fields, beside its files."""

    tenant = serializers.CharField(
        max_length=63, required=False, help_text="By slug; may be left out by a tenant's own token."
    )
    name = serializers.CharField(max_length=300, allow_blank=True, trim_whitespace=False)
    model = serializers.CharField(
        max_length=200, required=False, help_text="The base model; or name a pool."
    )
    pool = serializers.CharField(
        max_length=63,
        required=False,
        help_text="A pool of the base model. Required where the configuration names no base.",
    )


class AdapterForm(AdapterInput):
    """The whole form, as documentation shows it."""

    file = serializers.FileField(
        help_text="A .zip, .tar or .tar.gz of adapter_config.json and adapter_model.safetensors; "
        "or both files in two parts."
    )


class AdapterChange(VersionedInput):
    """What may be changed of an adapter."""

    pinned = serializers.BooleanField(required=False, help_text="Never evicted; staff only.")
    shared_with = serializers.ListField(
        child=serializers.CharField(max_length=63),
        required=False,
        help_text="Tenants, by slug, that may call it as `<owner>/<name>`.",
    )


class AdapterFilter(django_filters.FilterSet):
    """Which adapters."""

    tenant = django_filters.CharFilter("tenant__slug")
    model = django_filters.CharFilter("model__name")
    search = django_filters.CharFilter("name", "icontains")

    class Meta:
        model = Adapter
        fields = ["name", "pinned"]


class AdapterViewSet(ReadMixin, ServiceViewSet):
    """LoRA adapters: uploaded, shared, pinned, deleted; with their state on each replica.

    Members of a tenant and its tokens see their own and what is shared with them, and may upload;
    its admins share and delete. Staff pin.
    """

    tenant_roles: ClassVar[dict[str, str]] = {
        "list": MEMBER,
        "retrieve": MEMBER,
        "create": MEMBER,
        "partial_update": ADMIN,
        "destroy": ADMIN,
    }
    parser_classes = [JSONParser, AdapterParser]
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    queryset = Adapter.objects.none()
    serializer_class = AdapterSerializer
    filterset_class = AdapterFilter

    def get_queryset(self) -> QuerySet[Adapter]:
        """Give all adapters, or those that one of the caller's tenants may call."""
        return selectors.adapters(tenants=self.callers_tenants)

    def paginate_queryset(self, queryset: Any) -> Any:
        """Look a page's adapters up on all replicas at once."""
        page = super().paginate_queryset(queryset)
        self._rows = {row.adapter.pk: row for row in adapter_rows(page or ())}
        return page

    def get_serializer_context(self) -> dict[str, Any]:
        """Hand what was looked up to the serializer."""
        return {**super().get_serializer_context(), "rows": getattr(self, "_rows", {})}

    @extend_schema(
        request={"multipart/form-data": AdapterForm}, responses={201: changed(AdapterSerializer)}
    )
    def create(self, request: Request) -> Response:
        """Upload an adapter, or a new version of the one that has this name."""
        if self.is_dry_run:
            raise Invalid("An upload cannot be tried without sending it.", field="dry_run")
        given = self._fields(request)
        wanted = services.Wanted(**given)
        with services.received(
            wanted=wanted, uploaded=incoming(request.FILES), actor=self.actor
        ) as upload:
            return self.carry_out(partial(services.add_version, upload=upload), status=201)

    def _fields(self, request: Request) -> dict[str, Any]:
        fields = AdapterInput(data=request.POST.dict())
        fields.is_valid(raise_exception=True)
        given = dict(fields.validated_data)
        self.reason = given.pop("reason", "")
        if "tenant" not in given and self.callers_tenants and len(self.callers_tenants) == 1:
            given["tenant"] = next(iter(self.callers_tenants))
        if "tenant" not in given:
            raise Invalid("Name the tenant whose adapter it is.", field="tenant")
        self.check_tenant(given["tenant"])
        return given

    @extend_schema(request=AdapterChange, responses=changed(AdapterSerializer))
    def partial_update(self, request: Request, id: str) -> Response:
        """Pin an adapter, or share it with other tenants."""
        self._check_owner(id)
        changes = self.read(AdapterChange, partial=True)
        if "pinned" in changes and self.callers_tenants is not None:
            raise PermissionDenied("Pinning takes slots from other tenants: only staff may do it.")
        version = self.expected_version
        return self.carry_out(
            partial(services.update_adapter, public_id=id, expected_version=version, **changes)
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Take an adapter's name away at once; it is unloaded everywhere, then its files go."""
        self._check_owner(id)
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.delete_adapter, public_id=id, expected_version=version), status=204
        )

    def _check_owner(self, public_id: str) -> None:
        """Let a tenant change its own only; of those shared with it, it is told that much."""
        adapter = selectors.adapter(public_id, tenants=self.callers_tenants)
        if self.callers_tenants is not None and adapter.tenant.slug not in self.callers_tenants:
            raise PermissionDenied(f"It belongs to the tenant '{adapter.tenant.slug}'.")
