"""Node, Agent, Pool, Replica and what belongs to them: columns and constraints, no decisions."""

from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models

from controlplane.catalog.models import AdapterVersion, Model, ModelVersion
from controlplane.domain.replica_states import State
from controlplane.tenants.models import SLUG

STATES = [(state.value, state.value) for state in State]


class Node(models.Model):
    """A machine: its zone, GPUs, driver and CUDA version, as declared and as its agent reports."""

    name = models.CharField(max_length=63, unique=True, validators=[SLUG])
    zone = models.CharField(max_length=63, blank=True)
    hostname = models.CharField(max_length=253, blank=True)
    driver_version = models.CharField(max_length=40, blank=True)
    cuda_version = models.CharField(max_length=40, blank=True)
    gpus = models.JSONField(default=list, blank=True)  # wire.Gpu without the live readings
    executor = models.JSONField(default=dict, blank=True)  # wire.ExecutorFacts, by its agent
    owner = models.CharField(max_length=120, blank=True)
    backup_owner = models.CharField(max_length=120, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["name"]


class RegistrationToken(models.Model):
    """Lets one agent register once; only its SHA-256 is stored."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="registration_tokens")
    sha256 = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class Agent(models.Model):
    """Our process on a node: where it listens, its credential, what it last said it runs."""

    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="agent")
    public_id = models.CharField(max_length=32, unique=True)
    token_sha256 = models.CharField(max_length=64, unique=True)
    traffic_url = models.URLField()
    admin_url = models.URLField()
    agent_version = models.CharField(max_length=40, blank=True)
    registered_at = models.DateTimeField(auto_now_add=True)
    # By the server's clock; written at most every few seconds unless something changed.
    last_seen_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    reported_lineage = models.CharField(max_length=36, blank=True)
    applied_epoch = models.PositiveBigIntegerField(default=0)
    applied_digest = models.CharField(max_length=64, blank=True)
    applied_revision = models.PositiveBigIntegerField(default=0)  # of the table it runs
    table_source = models.CharField(max_length=8, blank=True)  # push, pull, disk
    draining = models.BooleanField(default=False)
    last_report_number = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["node__name"]


class Pool(models.Model):
    """Replicas of one model version under one set of policies.

    `settings` holds what differs from the defaults of `routing_agent.wire.PoolSettings`.
    """

    class Overload(models.TextChoices):
        QUEUE = "queue", "Queue"
        FALLBACK = "fallback", "Fall back to another pool"
        REJECT = "reject", "Refuse with 429"

    slug = models.CharField(max_length=63, unique=True, validators=[SLUG])
    description = models.CharField(max_length=300, blank=True)
    model_version = models.ForeignKey(ModelVersion, on_delete=models.PROTECT, related_name="pools")
    traffic_class = models.CharField(max_length=20, default="default")
    wanted_replicas = models.PositiveIntegerField(default=0)
    overload_policy = models.CharField(max_length=10, choices=Overload.choices)
    fallback_pool = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="fallback_of"
    )
    settings = models.JSONField(default=dict, blank=True)
    # Agents let requests wait this long for a replica that is to be started, as many as so many
    # replicas may queue; kept by `scaling`, 0 where nobody starts any.
    start_wait_s = models.FloatField(default=0.0, validators=[MinValueValidator(0)])
    may_grow_to = models.PositiveIntegerField(default=0)
    owner = models.CharField(max_length=120, blank=True)
    backup_owner = models.CharField(max_length=120, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["slug"]
        constraints = [
            models.CheckConstraint(
                condition=~models.Q(overload_policy="fallback")
                | models.Q(fallback_pool__isnull=False),
                name="fleet_fallback_names_its_pool",
            )
        ]


class TrafficSplit(models.Model):
    """A pool's share of a model's sessions. Zero is stored as zero and means none."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="splits")
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="splits")
    weight = models.FloatField(default=100.0, validators=[MinValueValidator(0)])
    held_by = models.CharField(max_length=60, blank=True, default="")  # a rollout that moves it

    class Meta:
        ordering = ["pool__slug"]
        constraints = [
            models.UniqueConstraint(fields=["model", "pool"], name="fleet_one_weight_per_pool"),
            models.CheckConstraint(
                condition=models.Q(weight__gte=0), name="fleet_weight_not_below_0"
            ),
        ]


class Shadow(models.Model):
    """Copies of a pool's requests go to another pool of the model; nobody gets its answers."""

    class Keep(models.TextChoices):
        FIGURES = "figures", "Figures only"
        ANSWERS = "answers", "Figures and both answers"
        PROMPTS = "prompts", "Figures, both answers and the request"

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="shadow")
    shadow_pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="shadow_of")
    ratio = models.FloatField(default=0.1)  # of requests, 0 to 1
    at_once = models.PositiveSmallIntegerField(default=4)  # under way, through each agent
    keep = models.CharField(max_length=8, choices=Keep.choices, default=Keep.FIGURES)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["pool__slug"]


class Replica(models.Model):
    """One engine process with its GPUs, and where it is in its life."""

    class Executor(models.TextChoices):
        STATIC = "static", "Run by somebody else, only routed to"
        AGENT = "agent", "Started and stopped by the agent of its node"

    public_id = models.CharField(max_length=32, unique=True)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="replicas")
    node = models.ForeignKey(
        Node, null=True, blank=True, on_delete=models.PROTECT, related_name="replicas"
    )
    executor = models.CharField(max_length=12, choices=Executor.choices, default=Executor.STATIC)
    url = models.CharField(max_length=300)  # http://host:port; IPv6 in brackets
    engine = models.CharField(max_length=20, default="vllm")
    engine_version = models.CharField(max_length=60, blank=True)
    served_model = models.CharField(max_length=200, blank=True)
    credential = models.CharField(max_length=300, blank=True)  # the engine's API key; never shown
    gpu_indices = models.JSONField(default=list, blank=True)
    weight = models.FloatField(default=1.0, validators=[MinValueValidator(0.01)])
    state = models.CharField(max_length=10, choices=STATES, default=State.PENDING.value)
    state_since = models.DateTimeField()
    state_reason = models.CharField(max_length=300, blank=True)
    state_actor = models.CharField(max_length=150, blank=True)
    # An operator's ejection stays until an operator restores it; one for health heals by itself.
    ejected_by_operator = models.BooleanField(default=False)
    ready_at = models.DateTimeField(null=True, blank=True)  # start of the slow-start ramp
    drain_deadline_at = models.DateTimeField(null=True, blank=True)
    drain_revision = models.PositiveBigIntegerField(null=True, blank=True)
    # Of executor `agent`: what its engine is started with, and how often that was asked for.
    launch = models.JSONField(default=dict, blank=True)
    starts = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)  # in a row
    is_spare = models.BooleanField(default=False)  # loaded and warm, kept out of traffic
    created_at = models.DateTimeField(auto_now_add=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["pool__slug", "public_id"]
        constraints = [
            # One process is one replica: two rows for one address would count its load twice.
            models.UniqueConstraint(
                fields=["url"],
                condition=~models.Q(state__in=["stopped", "failed"]),
                name="fleet_one_live_replica_per_url",
            )
        ]
        indexes = [models.Index(fields=["state"], name="fleet_replica_state")]


class ReplicaMove(models.Model):
    """One step of a replica's life: from, to, why, who, when."""

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="moves")
    at = models.DateTimeField()
    from_state = models.CharField(max_length=10)
    to_state = models.CharField(max_length=10)
    reason = models.CharField(max_length=300, blank=True)
    actor = models.CharField(max_length=150)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["replica", "-at"], name="fleet_moves_by_replica")]


class AdapterPlacement(models.Model):
    """One version of an adapter on one replica: whether it is to be there, and how far it is."""

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="placements")
    version = models.ForeignKey(AdapterVersion, on_delete=models.CASCADE, related_name="placements")
    wanted = models.BooleanField(default=True)  # else it is to be unloaded
    stage = models.CharField(max_length=10, blank=True)  # wire.AdapterStage; empty: not heard yet
    message = models.CharField(max_length=500, blank=True)
    stage_since = models.DateTimeField(null=True, blank=True)
    heard_at = models.DateTimeField(null=True, blank=True)  # when the replica's agent last told
    attempts = models.PositiveIntegerField(default=0)  # loads that failed in a row
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["replica__public_id"]
        constraints = [
            models.UniqueConstraint(
                fields=["replica", "version"], name="fleet_adapter_once_on_a_replica"
            )
        ]
