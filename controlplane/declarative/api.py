"""REST: the whole configuration as YAML, and applying a file."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.audit.services import Actor
from controlplane.declarative import document, services
from controlplane.declarative.download import MEDIA_TYPE, file_answer
from controlplane.declarative.services import Plan, Step
from controlplane.rest.serializers import ChangeInput, ChangeSerializer
from controlplane.rest.views import ServiceViewSet


class ApplyChangeSerializer(serializers.Serializer[Any]):
    """One field: before and after."""

    field = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)


class ApplyStepSerializer(serializers.Serializer[Any]):
    """What a file does to one object."""

    section = serializers.CharField()
    what = serializers.CharField()
    key = serializers.CharField()
    act = serializers.CharField(help_text="create, update or remove.")
    changes = ApplyChangeSerializer(many=True)
    note = serializers.CharField(allow_blank=True, help_text="What the file cannot bring back.")

    def to_representation(self, instance: Step) -> dict[str, Any]:
        """Give fields as a list."""
        return {
            **{n: getattr(instance, n) for n in ("section", "what", "key", "act", "note")},
            "changes": [
                {"field": name, "before": old, "after": new}
                for name, (old, new) in instance.changes.items()
            ],
        }


class AppliedSerializer(serializers.Serializer[Any]):
    """What a file did, or would do."""

    steps = ApplyStepSerializer(many=True)
    unchanged = serializers.IntegerField()
    unlisted = serializers.DictField(
        child=serializers.ListField(child=serializers.CharField()),
        help_text="By section: objects that the file does not list. They are kept.",
    )
    before = serializers.CharField(help_text="Digest of the configuration before.")
    change = ChangeSerializer()


class ApplyInput(ChangeInput):
    """A file to apply."""

    yaml = serializers.CharField(
        max_length=document.LIMIT_BYTES, trim_whitespace=False, help_text="The file's text."
    )
    remove = serializers.BooleanField(
        required=False, help_text="Remove objects that a section of the file does not list."
    )
    expected = serializers.CharField(
        max_length=64,
        required=False,
        help_text="Digest of the configuration that was seen; another one answers 409.",
    )


class ApplyViewSet(ServiceViewSet):
    """Apply a file; with `?dry_run=true` the same, undone: a plan with its differences."""

    required_role = "admin"

    @extend_schema(request=ApplyInput, responses={200: AppliedSerializer})
    def create(self, request: Request) -> Response:
        """Make the configuration what the file says, all of it or nothing."""
        given = self.read(ApplyInput)
        text = given.pop("yaml")
        return self.carry_out(partial(_apply, text, given), show=_shown)


def _apply(text: str, given: dict[str, Any], *, actor: Actor, reason: str) -> Plan:
    return services.apply(text, who={"actor": actor, "reason": reason}, **given)


def _shown(plan: Plan) -> dict[str, Any]:
    steps = ApplyStepSerializer(plan.steps, many=True)
    return {
        "steps": steps.data,
        "unchanged": plan.unchanged,
        "unlisted": dict(plan.unlisted),
        "before": plan.before,
    }


class ExportViewSet(viewsets.ViewSet):
    """The whole configuration."""

    required_role = "admin"
    # A read that tells key hashes and who may do what: not for viewers.
    required_roles = {"list": "admin"}

    @extend_schema(
        responses={
            (200, MEDIA_TYPE): OpenApiResponse(OpenApiTypes.STR, description="The file's text.")
        }
    )
    def list(self, request: Request) -> HttpResponse:
        """Give it as YAML; the header ETag is its digest."""
        return file_answer()
