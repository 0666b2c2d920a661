"""REST: shadows, which get copies of pools' requests."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.fleet import selectors, services
from controlplane.fleet.models import Shadow
from controlplane.rest.serializers import ReadOnlySerializer, VersionedInput, changed
from controlplane.rest.views import ReadMixin, ServiceViewSet


class ShadowSerializer(ReadOnlySerializer):
    """Where copies of a pool's requests go."""

    pool = serializers.CharField(source="pool.slug")
    shadow_pool = serializers.CharField(source="shadow_pool.slug")

    class Meta:
        model = Shadow
        fields = ["pool", "shadow_pool", "ratio", "at_once", "keep", "version"]


class ShadowInput(VersionedInput):
    """A pool's shadow, as a whole."""

    shadow_pool = serializers.CharField(max_length=63)
    ratio = serializers.FloatField(
        min_value=0, max_value=1, required=False, help_text="Of requests; by default 0.1."
    )
    at_once = serializers.IntegerField(
        min_value=1,
        max_value=64,
        required=False,
        help_text="Copies under way through each agent; by default 4.",
    )
    keep = serializers.ChoiceField(
        choices=Shadow.Keep.choices,
        required=False,
        help_text="What is stored of a pair; by default figures only, no text.",
    )


class ShadowViewSet(ReadMixin, ServiceViewSet):
    """Shadows: a pool that answers copies of another's requests; its answers reach nobody."""

    lookup_field = "pool__slug"
    lookup_url_kwarg = "pool"
    queryset = Shadow.objects.none()
    serializer_class = ShadowSerializer

    def get_queryset(self) -> QuerySet[Shadow]:
        """Give all shadows."""
        return selectors.shadows()

    @extend_schema(request=ShadowInput, responses=changed(ShadowSerializer))
    def update(self, request: Request, pool: str) -> Response:
        """Give a pool a shadow, or another one."""
        given: dict[str, Any] = self.read(ShadowInput)
        version = self.expected_version
        return self.carry_out(
            partial(services.set_shadow, pool=pool, expected_version=version, **given)
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, pool: str) -> Response:
        """Copy nothing more."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.remove_shadow, pool=pool, expected_version=version), status=204
        )
