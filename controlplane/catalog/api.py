"""REST: models and model versions."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, get_args

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.catalog import selectors, services
from controlplane.catalog.models import Dtype, Kind, Model, ModelVersion
from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.tenants.models import TenantRole
from routing_agent import wire

ENGINES = get_args(wire.EngineName)


class ModelSerializer(ReadOnlySerializer):
    """A name clients ask for, with its aliases."""

    aliases = serializers.ListField(child=serializers.CharField())
    version_count = serializers.IntegerField()
    pool_count = serializers.IntegerField()

    class Meta:
        model = Model
        fields = [
            "name",
            "kind",
            "aliases",
            "description",
            "bytes_per_token",
            "complexity",
            "cascade",
            "version_count",
            "pool_count",
            "created_at",
            "updated_at",
            "version",
        ]


class ModelChange(VersionedInput):
    """What may be changed of a model."""

    kind = serializers.ChoiceField(choices=Kind.choices, required=False)
    aliases = serializers.ListField(child=serializers.CharField(max_length=200), required=False)
    description = serializers.CharField(max_length=300, required=False, allow_blank=True)
    bytes_per_token = serializers.FloatField(min_value=0.1, required=False)
    complexity = serializers.DictField(
        required=False,
        allow_null=True,
        help_text="Which model answers by how complex a request is: `weights` of features, `bias`, "
        "`classes` of `name`, `model` and `below`. Null: this one.",
    )
    cascade = serializers.DictField(
        required=False,
        allow_null=True,
        help_text="Asks the model `to` where an answer is not trusted: `min_mean_logprob`, "
        "`on_cut`, `on_refusal`. Null: never.",
    )


class ModelInput(ModelChange):
    """A new model."""

    name = serializers.CharField(max_length=200)
    version = None  # type: ignore[assignment]


class ModelFilter(django_filters.FilterSet):
    """Which models."""

    search = django_filters.CharFilter("name", "icontains")

    class Meta:
        model = Model
        fields = ["name", "kind"]


class ModelViewSet(ReadMixin, ServiceViewSet):
    """Models by their names, which may contain slashes and colons, raw or percent-encoded."""

    required_roles = {"destroy": "admin"}
    tenant_roles: ClassVar[dict[str, str]] = dict.fromkeys(
        ("list", "retrieve"), TenantRole.MEMBER.value
    )
    lookup_field = "name"
    lookup_value_regex = ".+?"
    queryset = Model.objects.none()
    serializer_class = ModelSerializer
    ordering_more = ("pool_count",)
    filterset_class = ModelFilter

    def get_queryset(self) -> QuerySet[Model]:
        """Give all models, or those that one of the caller's tenants may call."""
        if self.callers_tenants is None:
            return selectors.models()
        return selectors.models_for(self.callers_tenants)

    @extend_schema(request=ModelInput, responses={201: changed(ModelSerializer)})
    def create(self, request: Request) -> Response:
        """Create a public model name."""
        return self.carry_out(partial(services.create_model, **self.read(ModelInput)), status=201)

    @extend_schema(request=ModelChange, responses=changed(ModelSerializer))
    def partial_update(self, request: Request, name: str) -> Response:
        """Change a model's aliases or facts."""
        changes = self.read(ModelChange, partial=True)
        version = self.expected_version
        return self.carry_out(
            partial(services.update_model, name=name, expected_version=version, **changes)
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Remove a model and its versions; refused while pools serve it."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.delete_model, name=name, expected_version=version), status=204
        )


class ModelVersionSerializer(ReadOnlySerializer):
    """Immutable weights plus engine settings, and the figures memory planning needs."""

    model = serializers.CharField(source="model.name")
    engine_arguments = serializers.DictField()
    pool_count = serializers.IntegerField()

    class Meta:
        model = ModelVersion
        fields = [
            "id",
            "model",
            "name",
            "source",
            "parameters",
            "layers",
            "kv_heads",
            "head_dim",
            "dtype",
            "kv_dtype",
            "context_tokens",
            "engine",
            "engine_version",
            "engine_arguments",
            "pool_count",
            "retired_at",
            "created_at",
        ]


class _Figure(serializers.IntegerField):
    """A count that may be unknown."""

    def __init__(self, max_value: int = 2**31 - 1) -> None:
        super().__init__(min_value=1, max_value=max_value, required=False, allow_null=True)


class ModelVersionInput(ChangeInput):
    """A new version."""

    model = serializers.CharField(max_length=200)
    name = serializers.CharField(max_length=100)
    source = serializers.CharField(  # type: ignore[assignment]  # DRF has a `source` of its own
        max_length=300, required=False, allow_blank=True
    )
    parameters = _Figure(2**62)
    layers = _Figure()
    kv_heads = _Figure()
    head_dim = _Figure()
    dtype = serializers.ChoiceField(choices=Dtype.choices, required=False)
    kv_dtype = serializers.ChoiceField(choices=Dtype.choices, required=False)
    context_tokens = _Figure()
    engine = serializers.ChoiceField(choices=ENGINES, required=False)
    engine_version = serializers.CharField(max_length=40, required=False, allow_blank=True)
    engine_arguments = serializers.DictField(required=False)


class ModelVersionFilter(django_filters.FilterSet):
    """Which versions."""

    model = django_filters.CharFilter("model__name")
    retired = django_filters.BooleanFilter("retired_at", "isnull", exclude=True)

    class Meta:
        model = ModelVersion
        fields = ["name", "engine"]


class ModelVersionViewSet(ReadMixin, ServiceViewSet):
    """Versions of models: made once, retired when nothing serves them."""

    required_roles = {"retire": "admin"}
    lookup_value_regex = r"\d{1,18}"
    queryset = ModelVersion.objects.none()
    serializer_class = ModelVersionSerializer
    ordering_more = ("pool_count",)
    filterset_class = ModelVersionFilter

    def get_queryset(self) -> QuerySet[ModelVersion]:
        """Give all versions."""
        return selectors.versions()

    @extend_schema(request=ModelVersionInput, responses={201: changed(ModelVersionSerializer)})
    def create(self, request: Request) -> Response:
        """Register weights and engine settings under a name."""
        given = self.read(ModelVersionInput)
        return self.carry_out(partial(services.create_version, **given), status=201)

    @extend_schema(request=ChangeInput, responses=changed(ModelVersionSerializer))
    @action(detail=True, methods=["post"])
    def retire(self, request: Request, pk: str) -> Response:
        """Take a version out of the offer; refused while pools serve it."""
        self.read(ChangeInput)
        return self.carry_out(partial(services.retire_version, version_id=int(pk)))
