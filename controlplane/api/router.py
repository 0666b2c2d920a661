"""Every noun of `/api/v1/`; a path works with and without its last slash."""

from __future__ import annotations

from rest_framework.routers import DefaultRouter

from controlplane.api.series import SeriesViewSet
from controlplane.api.system import SystemViewSet
from controlplane.audit.api import AuditEventViewSet
from controlplane.catalog.api import ModelVersionViewSet, ModelViewSet
from controlplane.declarative.api import ApplyViewSet, ExportViewSet
from controlplane.fleet.api import PoolViewSet
from controlplane.fleet.api_adapters import AdapterViewSet
from controlplane.fleet.api_nodes import AgentViewSet, NodeViewSet
from controlplane.fleet.api_replicas import ReplicaViewSet
from controlplane.fleet.api_shadows import ShadowViewSet
from controlplane.fleet.api_which_model import WhichModelViewSet
from controlplane.planning.api import PlanViewSet
from controlplane.reliability.api.alerts import AlertViewSet, SilenceViewSet
from controlplane.reliability.api.diagnosis import DiagnosisViewSet
from controlplane.reliability.api.slos import MaintenanceWindowViewSet, SloViewSet
from controlplane.reliability.api.webhooks import WebhookDeliveryViewSet, WebhookViewSet
from controlplane.rollouts.api import RolloutViewSet
from controlplane.rollouts.api_pairs import ShadowPairViewSet
from controlplane.routing.api import RoutingTableViewSet
from controlplane.routing.api_explain import ExplainViewSet
from controlplane.scaling.api import ScalingDecisionViewSet, ScalingPolicyViewSet
from controlplane.tenants.api import ApiKeyViewSet, TenantViewSet
from controlplane.tenants.api_members import MembershipViewSet, TenantTokenViewSet
from controlplane.tenants.api_quotas import QuotaViewSet
from controlplane.tenants.api_staff import StaffTokenViewSet, StaffViewSet
from controlplane.usage.api import RequestViewSet
from controlplane.usage.api_hours import UsageViewSet

router = DefaultRouter()
router.trailing_slash = "/?"
router.include_format_suffixes = False
for prefix, viewset, basename in (
    ("nodes", NodeViewSet, "node"),
    ("agents", AgentViewSet, "agent"),
    ("pools", PoolViewSet, "pool"),
    ("replicas", ReplicaViewSet, "replica"),
    ("models", ModelViewSet, "model"),
    ("model-versions", ModelVersionViewSet, "model-version"),
    ("rollouts", RolloutViewSet, "rollout"),
    ("adapters", AdapterViewSet, "adapter"),
    ("shadows", ShadowViewSet, "shadow"),
    ("shadow-pairs", ShadowPairViewSet, "shadow-pair"),
    ("tenants", TenantViewSet, "tenant"),
    ("quotas", QuotaViewSet, "quota"),
    ("api-keys", ApiKeyViewSet, "api-key"),
    ("staff-tokens", StaffTokenViewSet, "staff-token"),
    ("staff", StaffViewSet, "staff"),
    ("memberships", MembershipViewSet, "membership"),
    ("tenant-tokens", TenantTokenViewSet, "tenant-token"),
    ("usage", UsageViewSet, "usage"),
    ("which-model", WhichModelViewSet, "which-model"),
    ("routing-tables", RoutingTableViewSet, "routing-table"),
    ("audit-events", AuditEventViewSet, "audit-event"),
    ("requests", RequestViewSet, "request"),
    ("series", SeriesViewSet, "series"),
    ("explain", ExplainViewSet, "explain"),
    ("plan", PlanViewSet, "plan"),
    ("scaling-policies", ScalingPolicyViewSet, "scaling-policy"),
    ("scaling-decisions", ScalingDecisionViewSet, "scaling-decision"),
    ("slos", SloViewSet, "slo"),
    ("maintenance-windows", MaintenanceWindowViewSet, "maintenance-window"),
    ("alerts", AlertViewSet, "alert"),
    ("silences", SilenceViewSet, "silence"),
    ("diagnoses", DiagnosisViewSet, "diagnosis"),
    ("webhooks", WebhookViewSet, "webhook"),
    ("webhook-deliveries", WebhookDeliveryViewSet, "webhook-delivery"),
    ("export", ExportViewSet, "export"),
    ("apply", ApplyViewSet, "apply"),
    ("system", SystemViewSet, "system"),
):
    router.register(prefix, viewset, basename=f"api-{basename}")
