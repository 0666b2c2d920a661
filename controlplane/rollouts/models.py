"""Rollout, RolloutStep, AnalysisRun: a traffic move, its stages, what was made of its figures.

Pools, models and versions are named, not referenced: what happened outlives what it happened to.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from controlplane.domain import rollouts
from controlplane.domain.analysis import Verdict
from controlplane.domain.rollouts import Phase


class Rollout(models.Model):
    """Moves stable's share of a model's sessions to the canary, step by step."""

    model = models.CharField(max_length=200)
    stable_pool = models.CharField(max_length=63)
    canary_pool = models.CharField(max_length=63)
    stable_version = models.CharField(max_length=100)
    canary_version = models.CharField(max_length=100)
    share = models.FloatField()  # stable's weight at the start: what is moved
    percents = models.JSONField()  # of the share, one a step
    bake_s = models.FloatField(default=rollouts.BAKE_S)
    min_requests = models.PositiveIntegerField(default=rollouts.MIN_REQUESTS)
    regression_limit = models.FloatField(default=rollouts.REGRESSION_LIMIT)  # 0.1 = 10 %
    phase = models.CharField(max_length=12, choices=[(p.value, p.value) for p in Phase])
    reason = models.CharField(max_length=1000, blank=True)  # of the phase, or why it waits
    current = models.PositiveSmallIntegerField(default=0)  # index of its step
    baked_s = models.FloatField(default=0.0)  # of that step
    started_at = models.DateTimeField()
    started_by = models.CharField(max_length=150)
    evaluated_at = models.DateTimeField()  # whoever moves it on holds this turn
    finished_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["-started_at", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["model"],
                condition=Q(phase__in=[p.value for p in rollouts.RUNNING]),
                name="rollouts_one_running_per_model",
            )
        ]

    def __str__(self) -> str:
        return f"rollout {self.pk}"

    @property
    def is_running(self) -> bool:
        """Say whether it may still move weights."""
        return self.phase in rollouts.RUNNING

    @property
    def percent(self) -> float:
        """Give the canary's part of the share now, in percent."""
        if self.phase == Phase.DEGRADED:
            return 0.0
        return float(self.percents[self.current])


class RolloutStep(models.Model):
    """One stage: from when to when, obeyed since when, how it ended."""

    rollout = models.ForeignKey(Rollout, on_delete=models.CASCADE, related_name="steps")
    index = models.PositiveSmallIntegerField()
    percent = models.FloatField()
    began_at = models.DateTimeField()
    revision = models.PositiveBigIntegerField()  # of the fleet: its weights
    observed_at = models.DateTimeField(null=True, blank=True)  # every agent heard obeys it
    ended_at = models.DateTimeField(null=True, blank=True)
    outcome = models.CharField(max_length=12, blank=True)  # passed, promoted, failed, aborted
    reason = models.CharField(max_length=1000, blank=True)

    class Meta:
        ordering = ["index"]
        constraints = [
            models.UniqueConstraint(fields=["rollout", "index"], name="rollouts_one_row_a_step")
        ]


class AnalysisRun(models.Model):
    """Looks at a step that came to the same verdict, one after the other; the newest is shown."""

    step = models.ForeignKey(RolloutStep, on_delete=models.CASCADE, related_name="analyses")
    first_at = models.DateTimeField()
    at = models.DateTimeField()
    looks = models.PositiveIntegerField(default=1)
    verdict = models.CharField(max_length=12, choices=[(v.value, v.value) for v in Verdict])
    has_data = models.BooleanField()
    reason = models.CharField(max_length=1000)
    source = models.CharField(max_length=300, blank=True)  # where the figures are from
    canary_requests = models.PositiveBigIntegerField(default=0)
    stable_requests = models.PositiveBigIntegerField(default=0)
    metrics = models.JSONField(default=list)  # of domain.analysis.Metric

    class Meta:
        ordering = ["-at", "-pk"]


class ShadowPair(models.Model):
    """Two versions' answers to one request, and what a person made of the shadow's."""

    class Review(models.TextChoices):
        GOOD = "good", "Good"
        BAD = "bad", "Bad"

    uid = models.CharField(max_length=32, unique=True)  # booked once, however often it is sent
    request_id = models.CharField(max_length=128, db_index=True)
    at = models.DateTimeField(db_index=True)
    tenant = models.CharField(max_length=63, blank=True)
    model = models.CharField(max_length=200, blank=True)
    pool = models.CharField(max_length=63)
    shadow_pool = models.CharField(max_length=63)
    primary_version = models.CharField(max_length=100, blank=True)
    shadow_version = models.CharField(max_length=100, blank=True)
    path = models.CharField(max_length=100, blank=True)
    stream = models.BooleanField(default=False)
    outcome = models.CharField(max_length=10)  # same, differs, failed: of the shadow
    first_difference = models.PositiveIntegerField(null=True, blank=True)  # in characters
    primary = models.JSONField()  # of wire.ShadowAnswer
    shadow = models.JSONField()
    prompt = models.TextField(blank=True)  # only where its pool says so
    review = models.CharField(max_length=4, blank=True, choices=Review.choices)
    reviewed_by = models.CharField(max_length=150, blank=True)
    reviewed_at = models.DateTimeField(null=True, blank=True)
    note = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-at", "-pk"]
        indexes = [
            models.Index(fields=["pool", "-at"], name="shadow_pairs_by_pool"),
            models.Index(fields=["outcome", "-at"], name="shadow_pairs_by_outcome"),
        ]
