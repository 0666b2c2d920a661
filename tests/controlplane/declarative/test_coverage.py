"""A file knows every column that people set: a new one is taken in, or said to be none of it."""

from __future__ import annotations

from django.apps import apps

from controlplane.catalog.models import Adapter, Model, ModelVersion
from controlplane.declarative.sections import BY_NAME
from controlplane.fleet.models import Node, Pool, Replica, Shadow
from controlplane.reliability.models import MaintenanceWindow, Silence, Slo, Webhook
from controlplane.scaling.models import ScalingPolicy
from controlplane.scaling.services.policies import FIELDS
from controlplane.tenants.models import ApiKey, Membership, Tenant

OWN = {"id", "created_at", "updated_at", "created_by", "version"}  # counters and times of ours
# Model → its section, and the columns that are no configuration, or have another name there.
COLUMNS = {
    Model: ("models", set()),
    ModelVersion: ("versions", {"retired_at"}),  # `retired`
    Node: ("nodes", {"driver_version", "cuda_version", "executor"}),  # as its agent reports
    Pool: ("pools", {"model_version", "start_wait_s", "may_grow_to"}),  # the last two by scaling
    Shadow: ("shadows", set()),
    Replica: (
        "replicas",
        {
            *("public_id", "executor", "engine_version", "credential", "launch", "is_spare"),
            *("state", "state_since", "state_reason", "state_actor", "ejected_by_operator"),
            *("ready_at", "drain_deadline_at", "drain_revision", "starts", "failures"),
        },
    ),
    Tenant: ("tenants", set()),
    Membership: ("memberships", {"user"}),  # `username`
    ApiKey: ("api_keys", {"public_id", "last_used_at", "revoked_at"}),
    Adapter: ("adapters", {"public_id", "last_used_at", "deleted_at"}),
    Slo: ("slos", set()),
    MaintenanceWindow: ("maintenance", set()),
    Silence: ("silences", set()),
    Webhook: ("webhooks", {"url", "secret"}),
}
# Entirely something else: figures, history, what is observed, traffic under way, credentials.
NOT_CONFIGURATION = {
    *("audit.AuditEvent", "audit.FleetRevision", "api.IdempotentAnswer"),
    *("catalog.AdapterVersion",),  # its digest is in `adapters`
    *("fleet.Agent", "fleet.RegistrationToken", "fleet.ReplicaMove", "fleet.AdapterPlacement"),
    *("fleet.TrafficSplit",),  # `splits`, by model
    *("reliability.BudgetStep", "reliability.BudgetState", "reliability.Alert"),
    *("reliability.AlertRun", "reliability.WebhookDelivery"),
    *("rollouts.Rollout", "rollouts.RolloutStep", "rollouts.AnalysisRun", "rollouts.ShadowPair"),
    *("routing.Publication", "routing.RoutingEpoch", "routing.Delivery", "routing.LoopRun"),
    *("scaling.Override", "scaling.ScalingDecision", "scaling.ColdStart"),
    *("scaling.ScalingPolicy",),  # `scaling`: see below
    *("telemetry.RollUp", "telemetry.MemberRollUp", "telemetry.RollUpState"),
    *("tenants.StaffProfile", "tenants.StaffToken"),
    *("tenants.TenantToken", "tenants.LimitLedger"),
    *("usage.UsageHour", "usage.UsageCursor", "usage.RequestRecord"),
}


def test_every_column_that_people_set_is_in_a_file():
    for model, (section, left_out) in COLUMNS.items():
        columns = {f.name for f in model._meta.concrete_fields} | {
            f.name for f in model._meta.many_to_many
        }
        known = set(BY_NAME[section].entry.__struct_fields__)
        missing = columns - known - OWN - left_out
        assert missing == set(), f"{section} does not know {missing} of {model.__name__}"


def test_every_table_is_in_a_file_or_said_to_be_none_of_it():
    ours = {m._meta.label for m in apps.get_models() if m.__module__.startswith("controlplane.")}
    known = {m._meta.label for m in COLUMNS} | NOT_CONFIGURATION
    assert {label for label in ours - known if not label.rpartition(".")[2].startswith("_")} == {
        *()
    }


def test_a_policy_of_scaling_knows_what_people_set():
    columns = {f.name for f in ScalingPolicy._meta.concrete_fields}
    memory = {"pool", "round", "busy_until", "scaled_at", "below_since"}
    assert columns - set(FIELDS) - OWN - memory == set()
