"""REST: pools, their settings and the split of a model's sessions."""

from __future__ import annotations

from functools import partial
from typing import Any

import django_filters
import msgspec
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.audit.services import Actor
from controlplane.catalog.models import Model
from controlplane.domain import pool_settings
from controlplane.domain.attention import HEALTH_CODES, pool_health
from controlplane.fleet import rows, selectors, services, troubles
from controlplane.fleet.models import Pool
from controlplane.rest.serializers import (
    ReadOnlySerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet


class SettingSerializer(serializers.Serializer):
    """One setting of a pool as its agents obey it."""

    value = serializers.JSONField(allow_null=True)
    default = serializers.JSONField(allow_null=True)
    overridden = serializers.BooleanField()


class PoolHealthSerializer(serializers.Serializer):
    """How a pool does, as all pages show it."""

    code = serializers.ChoiceField(choices=HEALTH_CODES)
    reason = serializers.CharField(allow_blank=True)


class PoolSerializer(ReadOnlySerializer):
    """Replicas of one model version under one set of policies."""

    model = serializers.CharField(source="model_version.model.name")
    model_version = serializers.CharField(source="model_version.name")
    fallback_pool = serializers.CharField(
        source="fallback_pool.slug", default=None, allow_null=True
    )
    weight = serializers.SerializerMethodField()
    health = serializers.SerializerMethodField()
    settings = serializers.SerializerMethodField()
    warnings = serializers.SerializerMethodField()
    ready_count = serializers.IntegerField()
    starting_count = serializers.IntegerField()
    ejected_count = serializers.IntegerField()
    draining_count = serializers.IntegerField()
    failed_count = serializers.IntegerField()

    class Meta:
        model = Pool
        fields = [
            "slug",
            "description",
            "model",
            "model_version",
            "weight",
            "traffic_class",
            "wanted_replicas",
            "health",
            "ready_count",
            "starting_count",
            "ejected_count",
            "draining_count",
            "failed_count",
            "overload_policy",
            "fallback_pool",
            "settings",
            "warnings",
            "owner",
            "backup_owner",
            "created_at",
            "updated_at",
            "version",
        ]

    def get_weight(self, pool: Pool) -> float | None:
        """Give the pool's share of its model's sessions; null when it was never given one."""
        return next((split.weight for split in pool.splits.all()), None)

    @extend_schema_field(PoolHealthSerializer)
    def get_health(self, pool: Pool) -> dict[str, str]:
        """Judge a pool by its replicas and alerts; alerts are read once for a list."""
        found = pool_health(rows.counts_of(pool), troubles.of_pool(pool.slug, self.context))
        return {"code": found.code, "reason": found.reason}

    @extend_schema_field(serializers.DictField(child=SettingSerializer()))
    def get_settings(self, pool: Pool) -> dict[str, dict[str, Any]]:
        """Give every setting with its effective value, its default, and whether they differ."""
        effective, _ = pool_settings.resolved_as_far_as_possible(pool.settings)
        values = msgspec.to_builtins(msgspec.structs.asdict(effective))
        return {
            name: {
                "value": values[name],
                "default": msgspec.to_builtins(setting.default),
                "overridden": name in pool.settings,
            }
            for name, setting in pool_settings.SETTINGS.items()
        }

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_warnings(self, pool: Pool) -> list[str]:
        """Say what is allowed but probably not meant, and overrides that were left out."""
        effective, problems = pool_settings.resolved_as_far_as_possible(pool.settings)
        return [*problems, *pool_settings.warnings(effective)]


class PoolChange(VersionedInput):
    """What may be changed of a pool."""

    description = serializers.CharField(max_length=300, required=False, allow_blank=True)
    traffic_class = serializers.CharField(max_length=20, required=False)
    wanted_replicas = serializers.IntegerField(min_value=0, max_value=100_000, required=False)
    overload_policy = serializers.ChoiceField(choices=Pool.Overload.choices, required=False)
    fallback_pool = serializers.CharField(max_length=63, required=False, allow_null=True)
    settings = serializers.DictField(
        required=False,
        help_text="Only the settings named change; null returns one to its default.",
    )
    owner = serializers.CharField(max_length=120, required=False, allow_blank=True)
    backup_owner = serializers.CharField(max_length=120, required=False, allow_blank=True)


class PoolInput(PoolChange):
    """A new pool; what happens when it is full must be said."""

    slug = serializers.CharField(max_length=63)
    model = serializers.CharField(max_length=200)
    model_version = serializers.CharField(max_length=100)
    overload_policy = serializers.ChoiceField(choices=Pool.Overload.choices)
    version = None  # type: ignore[assignment]


class SplitChange(VersionedInput):
    """Weights by pool; they need not add up to 100, and 0 is exactly none."""

    weights = serializers.DictField(child=serializers.FloatField(min_value=0))


class SplitSerializer(serializers.Serializer):
    """How a model's sessions are split over its pools."""

    model = serializers.CharField()
    weights = serializers.DictField(child=serializers.FloatField())
    version = serializers.IntegerField(help_text="Of the model.")


class PoolFilter(django_filters.FilterSet):
    """Which pools."""

    model = django_filters.CharFilter("model_version__model__name")
    model_version = django_filters.CharFilter("model_version__name")
    search = django_filters.CharFilter("slug", "icontains")

    class Meta:
        model = Pool
        fields = ["slug", "traffic_class", "overload_policy", "owner"]


class PoolViewSet(ReadMixin, ServiceViewSet):
    """Pools: replicas of one model version under one set of policies."""

    required_roles = {"destroy": "admin"}
    lookup_field = "slug"
    queryset = Pool.objects.none()
    serializer_class = PoolSerializer
    ordering_more = (
        "ready_count",
        "starting_count",
        "ejected_count",
        "draining_count",
        "failed_count",
    )
    filterset_class = PoolFilter

    def get_queryset(self) -> QuerySet[Pool]:
        """Give all pools with what their rows show."""
        return selectors.pools_overview().prefetch_related("splits")

    @extend_schema(request=PoolInput, responses={201: changed(PoolSerializer)})
    def create(self, request: Request) -> Response:
        """Create a pool; it gets no sessions until it has a share (`splits`)."""
        given = self.read(PoolInput)
        given["version"] = given.pop("model_version")
        return self.carry_out(partial(services.create_pool, **given), status=201)

    @extend_schema(request=PoolChange, responses=changed(PoolSerializer))
    def partial_update(self, request: Request, slug: str) -> Response:
        """Change a pool's policies; agents obey them with the next table."""
        changes = self.read(PoolChange, partial=True)
        change = partial(_update_pool, slug, changes, expected_version=self.expected_version)
        return self.carry_out(change)

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, slug: str) -> Response:
        """Remove a pool without live replicas."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.delete_pool, slug=slug, expected_version=version), status=204
        )

    @extend_schema(responses=SplitSerializer)
    @action(detail=True, methods=["get"], filterset_class=None, pagination_class=None)
    def splits(self, request: Request, slug: str) -> Response:
        """Give the split of the sessions of this pool's model, over all its pools."""
        return Response(_split(selectors.pool(slug).model_version.model))

    @extend_schema(request=SplitChange, responses=changed(SplitSerializer))
    @splits.mapping.put
    def replace_splits(self, request: Request, slug: str) -> Response:
        """Set the whole split; pools left out get nothing."""
        return self._set_splits(slug, keep=False)

    @extend_schema(request=SplitChange, responses=changed(SplitSerializer))
    @splits.mapping.patch
    def change_splits(self, request: Request, slug: str) -> Response:
        """Set the weights of the pools named; the others keep theirs."""
        return self._set_splits(slug, keep=True)

    def _set_splits(self, slug: str, *, keep: bool) -> Response:
        weights = self.read(SplitChange)["weights"]
        model = selectors.pool(slug).model_version.model
        change = partial(
            _set_splits, model, weights, keep=keep, expected_version=self.expected_version
        )
        return self.carry_out(change, show=lambda made: _split(model))


def _update_pool(
    slug: str,
    changes: dict[str, Any],
    *,
    expected_version: int | None,
    actor: Actor,
    reason: str,
) -> Pool:
    """Update a pool whose settings are merged with what it has; the row is held meanwhile."""
    row = Pool.objects.select_for_update().filter(slug=slug).first()
    if row is not None and "settings" in changes:
        merged = {**row.settings, **changes["settings"]}
        kept = {name: value for name, value in merged.items() if value is not None}
        changes = {**changes, "settings": kept}
    return services.update_pool(
        slug=slug, expected_version=expected_version, actor=actor, reason=reason, **changes
    )


def _set_splits(
    model: Model,
    weights: dict[str, float],
    *,
    keep: bool,
    expected_version: int | None,
    actor: Actor,
    reason: str,
) -> Any:
    """Set a model's split; the model's row is held, so that two partial changes add up."""
    row = Model.objects.select_for_update().get(pk=model.pk)
    if keep:
        before = dict(row.splits.values_list("pool__slug", "weight"))
        weights = {**before, **weights}
    return services.set_splits(
        model=model.name,
        weights=weights,
        expected_version=expected_version,
        actor=actor,
        reason=reason,
    )


def _split(model: Model) -> dict[str, Any]:
    row = Model.objects.get(pk=model.pk)
    weights = dict(row.splits.values_list("pool__slug", "weight"))
    return {"model": row.name, "weights": weights, "version": row.version}
