"""REST: tenants and their API keys."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.tenants import selectors, services
from controlplane.tenants.models import ApiKey, Tenant, TenantRole, WhenUnreachable

MEMBER, ADMIN = TenantRole.MEMBER.value, TenantRole.ADMIN.value
LARGEST_LIMIT = 2_147_483_647


class TenantSerializer(ReadOnlySerializer):
    """A customer or team that calls models."""

    allowed_models = serializers.ListField(child=serializers.CharField())
    live_keys = serializers.IntegerField()

    class Meta:
        model = Tenant
        fields = [
            "slug",
            "name",
            "priority",
            "allowed_models",
            "suspended",
            "requests_per_minute",
            "tokens_per_minute",
            "concurrency",
            "limits_when_unreachable",
            "live_keys",
            "created_at",
            "updated_at",
            "version",
        ]


def _limit(meaning: str) -> serializers.IntegerField:
    return serializers.IntegerField(
        min_value=0,
        max_value=LARGEST_LIMIT,
        allow_null=True,
        required=False,
        help_text=f"{meaning} Null: no limit; 0: nothing.",
    )


class TenantChange(VersionedInput):
    """What may be changed of a tenant."""

    name = serializers.CharField(max_length=120, required=False)
    priority = serializers.IntegerField(
        min_value=0, max_value=9, required=False, help_text="0 is served first."
    )
    allowed_models = serializers.ListField(
        child=serializers.CharField(max_length=200), required=False, help_text="Empty: all."
    )
    suspended = serializers.BooleanField(required=False)
    requests_per_minute = _limit("Requests a minute over all agents together.")
    tokens_per_minute = _limit("Tokens a minute, in and out, over all agents together.")
    concurrency = _limit("Requests at the same time over all agents together.")
    limits_when_unreachable = serializers.ChoiceField(
        WhenUnreachable.choices,
        required=False,
        help_text="What holds when no control plane answers and a lease has run out: each agent "
        "goes by the whole limit alone (open), or refuses (closed).",
    )


class TenantInput(TenantChange):
    """A new tenant."""

    slug = serializers.CharField(max_length=63)
    version = None  # type: ignore[assignment]


class TenantFilter(django_filters.FilterSet):
    """Which tenants."""

    search = django_filters.CharFilter("name", "icontains")

    class Meta:
        model = Tenant
        fields = ["slug", "suspended", "priority"]


class TenantViewSet(ReadMixin, ServiceViewSet):
    """Tenants: who may call which models, with which priority."""

    required_role = "admin"
    tenant_roles: ClassVar[dict[str, str]] = {"list": MEMBER, "retrieve": MEMBER}
    lookup_field = "slug"
    queryset = Tenant.objects.none()
    serializer_class = TenantSerializer
    ordering_more = ("live_keys",)
    filterset_class = TenantFilter

    def get_queryset(self) -> QuerySet[Tenant]:
        """Give all tenants, or the caller's own."""
        return self.own(selectors.tenants(), "slug")

    @extend_schema(request=TenantInput, responses={201: changed(TenantSerializer)})
    def create(self, request: Request) -> Response:
        """Create a tenant; it can call nothing until it has a key."""
        return self.carry_out(partial(services.create_tenant, **self.read(TenantInput)), status=201)

    @extend_schema(request=TenantChange, responses=changed(TenantSerializer))
    def partial_update(self, request: Request, slug: str) -> Response:
        """Change a tenant; agents obey it with the next table."""
        changes = self.read(TenantChange, partial=True)
        version = self.expected_version
        return self.carry_out(
            partial(services.update_tenant, slug=slug, expected_version=version, **changes)
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, slug: str) -> Response:
        """Remove a tenant and all its keys."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.delete_tenant, slug=slug, expected_version=version), status=204
        )


class ApiKeySerializer(ReadOnlySerializer):
    """A tenant's key, without its text: that was shown when it was issued."""

    id = serializers.CharField(source="public_id")
    tenant = serializers.CharField(source="tenant.slug")

    class Meta:
        model = ApiKey
        fields = [
            "id",
            "tenant",
            "name",
            "prefix",
            "created_at",
            "created_by",
            "expires_at",
            "last_used_at",
            "revoked_at",
        ]


class IssuedApiKeySerializer(ApiKeySerializer):
    """A new key with its text, shown this once; null in a dry run and in a repeated answer."""

    plaintext = serializers.CharField(allow_null=True)

    class Meta(ApiKeySerializer.Meta):
        fields = [*ApiKeySerializer.Meta.fields, "plaintext"]


class ApiKeyInput(ChangeInput):
    """A new key."""

    tenant = serializers.CharField(max_length=63)
    name = serializers.CharField(max_length=63)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class RotationInput(ChangeInput):
    """How long both keys work."""

    overlap_hours = serializers.FloatField(
        min_value=0, max_value=720, default=24.0, help_text="Until the old key is refused."
    )


class ApiKeyFilter(django_filters.FilterSet):
    """Which keys."""

    tenant = django_filters.CharFilter("tenant__slug")
    revoked = django_filters.BooleanFilter("revoked_at", "isnull", exclude=True)

    class Meta:
        model = ApiKey
        fields = ["name", "prefix"]


class ApiKeyViewSet(ReadMixin, ServiceViewSet):
    """Tenants' keys: issue, look at, rotate, revoke. A tenant's admins do so for their own."""

    required_role = "operator"  # as in the console: a leaked key is revoked by who is on duty
    tenant_roles: ClassVar[dict[str, str]] = {
        "list": MEMBER,
        "retrieve": MEMBER,
        "create": ADMIN,
        "rotate": ADMIN,
        "revoke": ADMIN,
        "destroy": ADMIN,
    }
    lookup_field = "public_id"
    lookup_url_kwarg = "id"
    queryset = ApiKey.objects.none()
    serializer_class = ApiKeySerializer
    filterset_class = ApiKeyFilter

    def get_queryset(self) -> QuerySet[ApiKey]:
        """Give all keys, or those of the caller's tenants."""
        return self.own(selectors.api_keys(), "tenant__slug")

    @extend_schema(request=ApiKeyInput, responses={201: changed(IssuedApiKeySerializer)})
    def create(self, request: Request) -> Response:
        """Issue a key; the answer shows its text this once."""
        given = self.read(ApiKeyInput)
        self.check_tenant(given["tenant"])
        return self.carry_out(partial(services.issue_key, **given), status=201, show=self._issued)

    @extend_schema(request=RotationInput, responses={201: changed(IssuedApiKeySerializer)})
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, id: str) -> Response:
        """Issue a key's successor, shown this once; the old key works on for the overlap."""
        overlap = timedelta(hours=self.read(RotationInput)["overlap_hours"])
        public_id = self.get_object().public_id
        return self.carry_out(
            partial(services.rotate_key, public_id=public_id, overlap=overlap),
            status=201,
            show=self._issued,
        )

    @extend_schema(request=ChangeInput, responses=changed(ApiKeySerializer))
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, id: str) -> Response:
        """End a key for good; agents refuse it with the next table."""
        self.read(ChangeInput)
        public_id = self.get_object().public_id
        return self.carry_out(partial(services.revoke_key, public_id=public_id))

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """End a key for good, as revoke does; it stays listed as revoked."""
        self.read_removal()
        public_id = self.get_object().public_id
        return self.carry_out(partial(services.revoke_key, public_id=public_id), status=204)

    def _issued(self, issued: services.IssuedKey) -> dict[str, Any]:
        return {**self.show(issued.key), "plaintext": issued.plaintext}
