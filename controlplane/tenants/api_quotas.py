"""REST: what is used and left of tenants' limits, and which agent holds what."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, ClassVar

from django.db.models import QuerySet
from rest_framework import serializers

from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.tenants import selectors
from controlplane.tenants.models import Tenant, TenantRole


class AgentUseSerializer(serializers.Serializer[Any]):
    """What one agent holds of a concurrency limit."""

    agent = serializers.CharField()
    slots = serializers.IntegerField(help_text="Held: nobody else may use them.")
    in_use = serializers.IntegerField()
    share = serializers.IntegerField(
        allow_null=True, help_text="Its due by present demand; the shares sum to the limit."
    )
    wish = serializers.IntegerField(help_text="Asked for just now and not there.")
    age_s = serializers.FloatField(help_text="Since its last lease call.")


class QuotaSerializer(serializers.Serializer[Any]):
    """A tenant's limits, who holds what of them, and what is left."""

    tenant = serializers.CharField()
    concurrency = serializers.IntegerField(allow_null=True)
    slots_held = serializers.IntegerField()
    slots_in_use = serializers.IntegerField()
    requests_per_minute = serializers.IntegerField(allow_null=True)
    requests_left = serializers.IntegerField(
        allow_null=True, help_text="Not taken by any agent; below 0: used beyond the limit."
    )
    tokens_per_minute = serializers.IntegerField(allow_null=True)
    tokens_left = serializers.IntegerField(allow_null=True)
    when_unreachable = serializers.CharField()
    agents = AgentUseSerializer(many=True)

    def to_representation(self, instance: Tenant) -> dict[str, Any]:
        """Give a tenant's limits with their use, as of now."""
        use = selectors.limit_use(instance, now=time.time())
        if self.context["view"].callers_tenants is not None:  # node names are not theirs to know
            agents = [
                dataclasses.replace(a, agent=f"agent {n}") for n, a in enumerate(use.agents, 1)
            ]
            use = dataclasses.replace(use, agents=tuple(agents))
        named = {"tenant": instance.slug, "when_unreachable": instance.limits_when_unreachable}
        return dict(super().to_representation({**named, **dataclasses.asdict(use)}))


class QuotaViewSet(ReadMixin, ServiceViewSet):
    """Quotas: tenants' limits over all agents, the agents' shares, and what is left."""

    required_role = "admin"
    tenant_roles: ClassVar[dict[str, str]] = dict.fromkeys(
        ("list", "retrieve"), TenantRole.MEMBER.value
    )
    lookup_field = "slug"
    lookup_url_kwarg = "tenant"
    queryset = Tenant.objects.none()
    serializer_class = QuotaSerializer

    def get_queryset(self) -> QuerySet[Tenant]:
        """Give the tenants, or the caller's own."""
        return self.own(selectors.tenants().select_related("limitledger"), "slug")
