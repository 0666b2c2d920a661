"""REST: where would this request go, and why."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.errors import Unavailable
from controlplane.rest.serializers import StrictSerializer
from controlplane.routing import explain
from routing_agent import wire


class ExplainMessageInput(StrictSerializer):
    """One turn of a conversation, of text alone."""

    role = serializers.CharField(max_length=32)
    content = serializers.CharField(max_length=1_000_000, required=False, allow_blank=True)


class ExplainInput(StrictSerializer):
    """A request that is not sent."""

    model = serializers.CharField(max_length=200)
    adapter = serializers.CharField(
        max_length=200, required=False, allow_blank=True, help_text="As the body field `lora`."
    )
    tenant = serializers.CharField(max_length=63, required=False, allow_blank=True)
    session = serializers.CharField(max_length=512, required=False, allow_blank=True)
    prompt = serializers.CharField(max_length=1_000_000, required=False, allow_blank=True)
    messages = ExplainMessageInput(
        many=True, required=False, help_text="The whole conversation, instead of `prompt`."
    )
    max_tokens = serializers.IntegerField(
        min_value=0, max_value=10_000_000, required=False, allow_null=True
    )
    agent = serializers.CharField(
        max_length=32, required=False, allow_null=True, help_text="Ask this one; else any."
    )


class CandidateSerializer(serializers.Serializer):
    """One replica that could, or could not, have been chosen."""

    replica = serializers.CharField()
    score = serializers.FloatField(allow_null=True)
    terms = serializers.DictField(child=serializers.FloatField(allow_null=True))
    excluded = serializers.CharField(allow_blank=True)


class ExplanationSerializer(serializers.Serializer):
    """Where a request would go, and why, as one agent decides it now."""

    agent = serializers.CharField(help_text="The node that answered.")
    pool = serializers.CharField(allow_blank=True)
    adapter = serializers.CharField(allow_blank=True, help_text="What engines know it by.")
    version = serializers.CharField(allow_blank=True)
    policy = serializers.CharField(allow_blank=True)
    replica = serializers.CharField(allow_blank=True)
    route = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    awaited = serializers.CharField(
        allow_blank=True, help_text="A replica that it would wait for in the pool's queue."
    )
    error = serializers.CharField(allow_blank=True)
    candidates = CandidateSerializer(many=True)


class ExplainViewSet(viewsets.ViewSet):
    """Explains a routing decision without making it."""

    required_role = "viewer"

    @extend_schema(
        request=ExplainInput,
        responses={200: ExplanationSerializer},
        extensions={"x-immediate": True},
    )
    def create(self, request: Request) -> Response:
        """Ask an agent where a request would go; nothing is sent to an engine."""
        given = ExplainInput(data=request.data)
        given.is_valid(raise_exception=True)
        fields = dict(given.validated_data)
        agent = fields.pop("agent", None)
        if "messages" in fields:
            fields["messages"] = tuple(wire.ExplainMessage(**m) for m in fields["messages"])
        found = explain.explain(wire.ExplainRequest(**fields), agent=agent)
        if found.explanation is None:
            raise Unavailable(found.missing, code="no_agent")
        return Response({"agent": found.agent, **plain(found.explanation)})


def plain(explanation: wire.Explanation) -> dict[str, Any]:
    """Give every field, defaults included, with figures that JSON has no word for as null."""
    fields = msgspec.structs.asdict(explanation)
    fields["candidates"] = [_plain_candidate(c) for c in explanation.candidates]
    return fields


def _plain_candidate(candidate: wire.Candidate) -> dict[str, Any]:
    return {
        **msgspec.structs.asdict(candidate),
        "score": _finite(candidate.score),
        "terms": {name: _finite(value) for name, value in candidate.terms.items()},
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
