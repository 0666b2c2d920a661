"""ScalingPolicy, Override, ScalingDecision, ColdStart: columns and constraints, no decisions."""

from __future__ import annotations

from typing import get_args

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from controlplane.catalog.models import ModelVersion
from controlplane.domain.scaling_inputs import Policy
from controlplane.fleet.models import Node, Pool, Replica
from routing_agent.wire import ProgramName

_D = Policy()
_RATIO = [MinValueValidator(0.01), MaxValueValidator(1.0)]


class ScalingPolicy(models.Model):
    """How one pool scales, what its engines are started with, and what the loop remembers."""

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="scaling_policy")
    enabled = models.BooleanField(default=True)
    executor = models.CharField(
        max_length=12, choices=Replica.Executor.choices, default=Replica.Executor.AGENT
    )
    min_replicas = models.PositiveIntegerField(default=_D.min_replicas)
    max_replicas = models.PositiveIntegerField(
        default=_D.max_replicas, validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )
    queue_wait_limit_s = models.FloatField(
        default=_D.queue_wait_limit_s, validators=[MinValueValidator(0.001)]
    )
    kv_usage_limit = models.FloatField(default=_D.kv_usage_limit, validators=_RATIO)
    queue_length_limit = models.FloatField(
        default=_D.queue_length_limit, validators=[MinValueValidator(0.1)]
    )
    utilisation_low = models.FloatField(default=_D.utilisation_low, validators=_RATIO)
    utilisation_high = models.FloatField(default=_D.utilisation_high, validators=_RATIO)
    cooldown_s = models.FloatField(default=_D.cooldown_s, validators=[MinValueValidator(0)])
    tolerance_ratio = models.FloatField(
        default=_D.tolerance_ratio, validators=[MinValueValidator(0), MaxValueValidator(1)]
    )
    step_factor = models.FloatField(
        default=_D.step_factor, validators=[MinValueValidator(1.01), MaxValueValidator(10)]
    )
    max_step = models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)])
    scale_down_after_s = models.FloatField(
        default=_D.scale_down_after_s, validators=[MinValueValidator(0)]
    )
    warm_spares = models.PositiveIntegerField(default=0)
    drain_s = models.FloatField(
        default=600.0, validators=[MinValueValidator(0.1), MaxValueValidator(1800)]
    )
    start_wait_s = models.FloatField(default=120.0, validators=[MinValueValidator(0)])
    loading_limit_s = models.FloatField(default=900.0, validators=[MinValueValidator(1)])
    # What is started. Empty: as the model version says.
    program = models.CharField(
        max_length=12, blank=True, choices=[(p, p) for p in get_args(ProgramName)]
    )
    model_source = models.CharField(max_length=300, blank=True)
    gpus_per_replica = models.PositiveIntegerField(default=1)
    memory_ratio = models.FloatField(default=0.9, validators=_RATIO)
    engine_arguments = models.JSONField(default=dict, blank=True)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking
    # The loop's memory. Whoever raises `round` decides this time; `busy_until` ends by itself.
    round = models.PositiveBigIntegerField(default=0)
    busy_until = models.DateTimeField(null=True, blank=True)
    scaled_at = models.DateTimeField(null=True, blank=True)
    below_since = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["pool__slug"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(min_replicas__lte=models.F("max_replicas")),
                name="scaling_least_not_above_most",
            ),
            models.CheckConstraint(
                condition=models.Q(utilisation_low__lt=models.F("utilisation_high")),
                name="scaling_band_is_one",
            ),
        ]


class Override(models.Model):
    """A number of replicas that a person wants until a moment, whatever the signals say."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="scaling_overrides")
    count = models.PositiveIntegerField()
    reason = models.CharField(max_length=300)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)  # before its time, by a person

    class Meta:
        ordering = ["-id"]


class ScalingDecision(models.Model):
    """What was decided for a pool, from what, and what came of it.

    A decision that is taken again and again stays one row: `last_at` and `times` say for how long.
    """

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="scaling_decisions")
    at = models.DateTimeField()
    last_at = models.DateTimeField()
    times = models.PositiveIntegerField(default=1)
    code = models.CharField(max_length=12)
    before = models.PositiveIntegerField()  # replicas that counted as capacity
    raw = models.PositiveIntegerField()  # what the signals alone ask for
    wanted = models.PositiveIntegerField()
    limit = models.CharField(max_length=60, blank=True)  # which limit changed that
    reason = models.CharField(max_length=300)
    outcome = models.CharField(max_length=600, blank=True)
    is_alarm = models.BooleanField(default=False)
    inputs = models.JSONField(default=dict)  # signals with ages, and replicas by state

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["pool", "-id"], name="scaling_newest_of_pool")]


class ColdStart(models.Model):
    """How long one start took, from the action to the first completion."""

    replica = models.CharField(max_length=32)  # public id
    start = models.PositiveIntegerField()
    model_version = models.ForeignKey(
        ModelVersion, on_delete=models.CASCADE, related_name="cold_starts"
    )
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="cold_starts")
    program = models.CharField(max_length=12, blank=True)
    seconds = models.FloatField()
    at = models.DateTimeField()

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(fields=["replica", "start"], name="scaling_one_time_a_start")
        ]
