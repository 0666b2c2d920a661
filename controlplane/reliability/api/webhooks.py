"""REST: webhooks and what became of their messages. Addresses and secrets are never read out."""

from __future__ import annotations

from functools import partial
from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.reliability import selectors, services
from controlplane.reliability.models import Webhook, WebhookDelivery
from controlplane.reliability.outbound import origin
from controlplane.rest.serializers import (
    ChangeInput,
    ReadOnlySerializer,
    VersionedInput,
    changed,
)
from controlplane.rest.views import ReadMixin, ServiceViewSet


class WebhookSerializer(ReadOnlySerializer):
    """Who is told of alerts; of its address only the host is shown."""

    host = serializers.SerializerMethodField()

    class Meta:
        model = Webhook
        fields = ["name", "host", "pool", "only_critical", "enabled", "created_at", "version"]

    def get_host(self, webhook: Webhook) -> str:
        """Give what may be shown of its address."""
        return origin(webhook.url)


class CreatedWebhookSerializer(WebhookSerializer):
    """A new webhook with the secret of its signatures, shown this once; null in a dry run."""

    plaintext = serializers.CharField(allow_null=True)

    class Meta(WebhookSerializer.Meta):
        fields = [*WebhookSerializer.Meta.fields, "plaintext"]


class WebhookChange(VersionedInput):
    """What may be changed of a webhook."""

    url = serializers.CharField(max_length=500, required=False, help_text="http or https.")
    pool = serializers.CharField(
        max_length=63, required=False, allow_blank=True, help_text="Empty: alerts of all pools."
    )
    only_critical = serializers.BooleanField(required=False)
    enabled = serializers.BooleanField(required=False)


class WebhookInput(WebhookChange):
    """A new webhook."""

    name = serializers.CharField(max_length=63)
    url = serializers.CharField(max_length=500, help_text="http or https.")
    version = None  # type: ignore[assignment]


class WebhookDeliverySerializer(ReadOnlySerializer):
    """What became of one message."""

    webhook = serializers.CharField(source="webhook.name")

    class Meta:
        model = WebhookDelivery
        fields = [
            "id",
            "webhook",
            "alert",
            "event",
            "message_id",
            "outcome",
            "attempts",
            "next_try_at",
            "last_status",
            "last_error",
            "created_at",
            "delivered_at",
        ]


class WebhookDeliveryFilter(django_filters.FilterSet):
    """Which messages."""

    webhook = django_filters.CharFilter("webhook__name")

    class Meta:
        model = WebhookDelivery
        fields = ["outcome", "event", "alert"]


class WebhookDeliveryViewSet(ReadMixin, ServiceViewSet):
    """Messages to webhooks, newest first."""

    queryset = WebhookDelivery.objects.none()
    serializer_class = WebhookDeliverySerializer
    filterset_class = WebhookDeliveryFilter

    def get_queryset(self) -> QuerySet[WebhookDelivery]:
        """Give all messages of the last 14 days."""
        return selectors.deliveries()


class WebhookViewSet(ReadMixin, ServiceViewSet):
    """Webhooks: signed messages when alerts begin to fire and when they end."""

    required_role = "admin"
    lookup_field = "name"
    queryset = Webhook.objects.none()
    serializer_class = WebhookSerializer

    def get_queryset(self) -> QuerySet[Webhook]:
        """Give all webhooks."""
        return selectors.webhooks()

    @extend_schema(request=WebhookInput, responses={201: changed(CreatedWebhookSerializer)})
    def create(self, request: Request) -> Response:
        """Tell an address from now on; the answer shows the secret of its signatures this once."""
        return self.carry_out(
            partial(services.create_webhook, **self.read(WebhookInput)),
            status=201,
            show=self._created,
        )

    @extend_schema(request=WebhookChange, responses=changed(WebhookSerializer))
    def partial_update(self, request: Request, name: str) -> Response:
        """Change where and what it is told."""
        changes = self.read(WebhookChange, partial=True)
        version = self.expected_version
        return self.carry_out(
            partial(services.update_webhook, name=name, expected_version=version, **changes)
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Tell it no more."""
        self.read_removal()
        version = self.expected_version
        return self.carry_out(
            partial(services.delete_webhook, name=name, expected_version=version), status=204
        )

    @extend_schema(request=ChangeInput, responses=changed(WebhookDeliverySerializer))
    @action(detail=True, methods=["post"])
    def test(self, request: Request, name: str) -> Response:
        """Send a message that says it is a test; `webhook-deliveries` shows what becomes of it."""
        self.read(ChangeInput)
        return self.carry_out(
            partial(services.test_webhook, name=name),
            show=lambda made: dict(WebhookDeliverySerializer(made).data),
        )

    def _created(self, made: services.CreatedWebhook) -> dict[str, Any]:
        return {**self.show(made.webhook), "plaintext": made.plaintext}
