"""Promises (Slo, MaintenanceWindow) and what was spent of them (BudgetStep); alerts, silences."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from controlplane.domain import slos
from controlplane.fleet.models import Pool

# Nobody keeps more than five nines, and a promise of less than nine in ten is none.
_RATIO = [MinValueValidator(0.9), MaxValueValidator(0.99999)]


class Slo(models.Model):
    """What one pool promises where it is not the default, who answers for it, next review."""

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="slo")
    availability_ratio = models.FloatField(
        default=slos.DEFAULTS.availability_ratio, validators=_RATIO
    )
    ttft_p99_s = models.FloatField(
        default=slos.DEFAULTS.ttft_p99_s,
        validators=[MinValueValidator(0.001), MaxValueValidator(3600)],
    )
    tpot_p99_s = models.FloatField(
        default=slos.DEFAULTS.tpot_p99_s,
        validators=[MinValueValidator(0.0001), MaxValueValidator(60)],
    )
    error_ratio = models.FloatField(
        default=slos.DEFAULTS.error_ratio,
        validators=[MinValueValidator(0.00001), MaxValueValidator(0.5)],
    )
    owner = models.CharField(max_length=120, blank=True)
    review_on = models.DateField(null=True, blank=True)  # when the owner looks at it again
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["pool__slug"]


class MaintenanceWindow(models.Model):
    """Time that does not count against promises: of one pool, or of all."""

    class Kind(models.TextChoices):
        MAINTENANCE = "maintenance", "Maintenance"
        MODEL_UPDATE = "model-update", "Model update"

    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.CASCADE, related_name="maintenance_windows"
    )
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.MAINTENANCE)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=300)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-starts_at"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("starts_at")),
                name="reliability_window_ends_after_start",
            )
        ]


class BudgetStep(models.Model):
    """What one pool's minute or hour counts for. Kept apart from roll-ups, which forget minutes:
    an hour of which a part was maintenance could not be told from its sums."""

    pool = models.CharField(max_length=63)  # by name: figures outlive what they are of
    step_s = models.PositiveSmallIntegerField()
    at = models.DateTimeField()
    source_requests = models.PositiveBigIntegerField(default=0)  # of the roll-up it was made from
    covered_s = models.FloatField(default=0)
    excluded_s = models.FloatField(default=0)
    bad_s = models.FloatField(default=0)
    valid = models.PositiveBigIntegerField(default=0)
    bad = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    ttft = models.PositiveBigIntegerField(default=0)
    ttft_slow = models.PositiveBigIntegerField(default=0)
    tpot = models.PositiveBigIntegerField(default=0)
    tpot_slow = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "step_s", "at"], name="reliability_one_budget_step"
            )
        ]
        indexes = [models.Index(fields=["step_s", "at"], name="reliability_budget_by_step")]


class BudgetState(models.Model):
    """The one row that whoever books budgets holds while writing, and how far it has come."""

    booked_until = models.DateTimeField(null=True, blank=True)
