"""REST: plan capacity. Nothing is stored, so nothing is audited."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.utils import timezone
from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.planning_inputs import BY_NAME, DEFAULTS, FIELDS, Field, Known
from controlplane.planning import selectors, what_if
from controlplane.planning.selectors import Planned
from controlplane.rest.serializers import StrictSerializer
from routing_agent import hardware


def _input(field: Field) -> serializers.Field:
    """Make the API's input of one field; bounds are the planner's own to tell."""
    unit = f" In {field.unit}." if field.unit else ""
    known = f" One of: {', '.join(field.choices)}." if field.choices else ""
    given: dict[str, Any] = {
        "required": False,
        "allow_null": True,
        "help_text": f"{field.label}. {field.help}{unit}{known}",
    }
    if field.kind == "choice":
        return serializers.CharField(max_length=60, **given)
    if field.kind == "whole":
        return serializers.IntegerField(**given)
    return serializers.FloatField(**given)


class _PlanInput(StrictSerializer):
    """What to plan for; what is left out comes from the pool, the named model or a default."""

    pool = serializers.CharField(
        max_length=63,
        required=False,
        allow_null=True,
        help_text="Take what is left out from this pool: peak, facts of its version, GPUs.",
    )
    what_if = serializers.BooleanField(
        default=False,
        help_text="Replay the pool's busiest ten minutes over simulated fleets; takes seconds.",
    )


PlanInput = type(
    "PlanInput",
    (_PlanInput,),
    {f.name: _input(f) for f in FIELDS} | {"__doc__": _PlanInput.__doc__, "__module__": __name__},
)


class PlanInputLineSerializer(serializers.Serializer):
    """One input that was used, and where it is from."""

    name = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]
    value = serializers.JSONField(help_text="A number, or the word of a choice.")
    unit = serializers.CharField(allow_blank=True)
    source = serializers.CharField()  # type: ignore[assignment]
    at = serializers.DateTimeField(
        allow_null=True, help_text="Of when it is; null for what does not age."
    )


class PlanStepSerializer(serializers.Serializer):
    """One step of the calculation."""

    name = serializers.CharField()
    title = serializers.CharField()
    formula = serializers.CharField()
    working = serializers.CharField(allow_blank=True, help_text="The formula with its numbers.")
    value = serializers.FloatField(allow_null=True, help_text="Null: an input is missing.")
    unit = serializers.CharField()
    reason = serializers.CharField()
    status = serializers.CharField(help_text="ok, warning or missing.")


class WhatIfPointSerializer(serializers.Serializer):
    """How the minutes went with so many replicas."""

    replicas = serializers.IntegerField()
    ttft_p50_s = serializers.FloatField(allow_null=True)
    ttft_p99_s = serializers.FloatField(allow_null=True)
    tpot_p99_s = serializers.FloatField(allow_null=True)
    shed = serializers.IntegerField(help_text="Requests that no replica took.")


class WhatIfSerializer(serializers.Serializer):
    """A replay for several sizes of the fleet, or what is missing for one."""

    points = WhatIfPointSerializer(many=True)
    source = serializers.CharField(allow_blank=True)  # type: ignore[assignment]
    at = serializers.DateTimeField(allow_null=True, help_text="When the minutes began.")
    missing = serializers.CharField(allow_blank=True)


class PlanSerializer(serializers.Serializer):
    """A plan: every input with its source, every step with its reason."""

    inputs = PlanInputLineSerializer(many=True)
    missing = serializers.DictField(
        child=serializers.CharField(), help_text="By input: why the pool could not tell it."
    )
    steps = PlanStepSerializer(many=True)
    results = serializers.DictField(
        child=serializers.FloatField(allow_null=True), help_text="Value by name of the step."
    )
    what_if = WhatIfSerializer(allow_null=True, help_text="Null: not asked for.")


class KnownModelSerializer(serializers.Serializer):
    """A model of the table that the planner and the simulation share."""

    name = serializers.CharField()
    parameters = serializers.IntegerField()
    layers = serializers.IntegerField()
    kv_heads = serializers.IntegerField()
    head_size = serializers.IntegerField()
    longest_context_tokens = serializers.IntegerField(source="context_tokens")
    source = serializers.CharField()  # type: ignore[assignment]


class KnownGpuSerializer(serializers.Serializer):
    """A GPU of the same table."""

    name = serializers.CharField()
    memory_bytes = serializers.FloatField()
    source = serializers.CharField()  # type: ignore[assignment]


class PlanKnowledgeSerializer(serializers.Serializer):
    """What the planner knows without being told."""

    defaults = PlanInputLineSerializer(many=True)
    models = KnownModelSerializer(many=True)
    gpus = KnownGpuSerializer(many=True)


class PlanViewSet(viewsets.ViewSet):
    """Plans capacity; changes nothing."""

    required_role = "viewer"

    @extend_schema(
        request=PlanInput, responses={200: PlanSerializer}, extensions={"x-immediate": True}
    )
    def create(self, request: Request) -> Response:
        """Calculate replicas, memory, concurrency and cost, step by step; nothing is stored."""
        given = PlanInput(data=request.data)
        given.is_valid(raise_exception=True)
        entered = dict(given.validated_data)
        pool, is_asked = entered.pop("pool", None), entered.pop("what_if")
        now = timezone.now()
        found = selectors.planned(entered=entered, pool=pool, now=now)
        replay = what_if.what_if(found.plan, pool=pool, now=now) if is_asked else None
        return Response(plain(found, replay))

    @extend_schema(responses={200: forced_singular_serializer(PlanKnowledgeSerializer)})
    def list(self, request: Request) -> Response:
        """Give the defaults, models and GPUs that a plan may name, each with its source."""
        shown = {
            "defaults": [_line(name, known) for name, known in DEFAULTS.items()],
            "models": [_named(name, row) for name, row in hardware.MODELS.items()],
            "gpus": [_named(name, row) for name, row in hardware.GPUS.items()],
        }
        return Response(PlanKnowledgeSerializer(shown).data)


def plain(found: Planned, replay: what_if.WhatIf | None) -> dict[str, Any]:
    """Give a plan as the API and the command tell it."""
    shown = {
        "inputs": [_line(name, known) for name, known in found.plan.inputs.items()],
        "missing": found.missing,
        "steps": found.plan.steps,
        "results": {step.name: step.value for step in found.plan.steps},
        "what_if": replay,
    }
    return dict(PlanSerializer(shown).data)


def _line(name: str, known: Known) -> dict[str, Any]:
    field = BY_NAME[name]
    return {
        "name": name,
        "label": field.label,
        "value": known.value,
        "unit": field.unit,
        "source": known.source,
        "at": known.at,
    }


def _named(name: str, row: hardware.Model | hardware.Gpu) -> dict[str, Any]:
    return {"name": name} | dataclasses.asdict(row)
