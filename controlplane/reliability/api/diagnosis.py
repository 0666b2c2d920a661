"""REST: guided diagnosis of a pool. It looks and changes nothing."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.diagnosis import TITLES
from controlplane.domain.errors import Invalid
from controlplane.reliability.selectors import diagnosis


class DiagnosisStepSerializer(serializers.Serializer[Any]):
    """One question and its answer."""

    name = serializers.CharField()
    title = serializers.CharField()
    now = serializers.CharField()
    before = serializers.CharField()
    verdict = serializers.CharField(help_text="yes, no, or no data.")
    reason = serializers.CharField()
    remedy = serializers.CharField(allow_blank=True)
    explained_by = serializers.CharField(allow_blank=True)


class DiagnosisSerializer(serializers.Serializer[Any]):
    """Answers in a fixed order, and the first cause in a sentence."""

    pool = serializers.CharField()
    question = serializers.CharField(source="diagnosis.question")
    title = serializers.CharField(source="diagnosis.title")
    cause = serializers.CharField(source="diagnosis.cause")
    cause_step = serializers.CharField(
        source="diagnosis.cause_step", allow_blank=True, help_text="Empty: no cause found."
    )
    remedy = serializers.CharField(source="diagnosis.remedy")
    steps = DiagnosisStepSerializer(source="diagnosis.steps", many=True)
    since = serializers.DateTimeField()
    now_is = serializers.CharField(help_text="What the figures called now are of.")
    before_is = serializers.CharField()
    missing = serializers.CharField(allow_blank=True)
    at = serializers.DateTimeField()


class DiagnosisViewSet(viewsets.ViewSet):
    """Diagnosis of a pool."""

    required_role = "viewer"
    lookup_field = "pool"

    @extend_schema(
        parameters=[
            OpenApiParameter("pool", str, OpenApiParameter.PATH),
            OpenApiParameter("question", enum=list(TITLES), description="By default ttft."),
            OpenApiParameter("alert", int, description="Look from when this alert began."),
        ],
        responses=DiagnosisSerializer,
    )
    def retrieve(self, request: Request, pool: str) -> Response:
        """Look at a pool's figures now and before, in the order of the question."""
        asked = request.query_params.get("alert")
        found = diagnosis.diagnose(
            pool, request.query_params.get("question", "ttft"), number(asked) if asked else None
        )
        return Response(DiagnosisSerializer(found).data)


def number(text: str) -> int:
    """Read an alert's id."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Invalid("alert is the id of an alert.", field="alert")
    return int(text)
