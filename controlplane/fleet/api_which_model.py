"""REST: which model answered, by which path, as agents count since each began."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.fleet import rows
from controlplane.fleet.model_paths import model_lines


class PathSerializer(serializers.Serializer[Any]):
    """One path that a model's requests took."""

    path = serializers.CharField(
        help_text="A class's name, cascade (the small model's answer was trusted), escalated, "
        "direct (a stream), or shape."
    )
    answered_by = serializers.CharField(help_text="A model; of a shape a pool.")
    requests = serializers.IntegerField()
    prompt_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    wasted_tokens = serializers.IntegerField(help_text="Written and thrown away.")


class WhichModelSerializer(serializers.Serializer[Any]):
    """A model that has a rule, and what came of it."""

    model = serializers.CharField(source="model.name")
    largest = serializers.CharField(
        allow_null=True, help_text="The model that would answer without the rule."
    )
    saved_output_tokens = serializers.IntegerField(
        source="saved",
        allow_null=True,
        help_text="That the largest model did not have to write, less what was written twice.",
    )
    paths = PathSerializer(many=True, source="paths.lines")


class WhichModelViewSet(viewsets.ViewSet):
    """Which model answers: the split and what it saved, for models that have a rule."""

    serializer_class = WhichModelSerializer

    @extend_schema(responses=WhichModelSerializer(many=True))
    def list(self, request: Request) -> Response:
        """Give all models with a rule."""
        lines = [line for line in model_lines(rows.reports()) if line.has_rule]
        return Response(WhichModelSerializer(lines, many=True).data)
