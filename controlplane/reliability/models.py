"""Promises (Slo, MaintenanceWindow) and what was spent of them (BudgetStep); alerts, silences."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from controlplane.domain import slos
from controlplane.domain.alert_rules import RULES, Severity
from controlplane.domain.alerts import State
from controlplane.fleet.models import Pool
from controlplane.tenants.models import SLUG

ALERT_STATES = [(s.value, s.value) for s in State]
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


class Alert(models.Model):
    """One rule that is or was broken by one subject, from the moment it began to be."""

    rule = models.CharField(max_length=40)
    subject = models.CharField(max_length=63)
    pool = models.CharField(max_length=63, blank=True)  # by name: alerts outlive pools
    severity = models.CharField(max_length=10, choices=[(s.value, s.value) for s in Severity])
    state = models.CharField(max_length=10, choices=ALERT_STATES)
    since = models.DateTimeField()
    fired_at = models.DateTimeField(null=True, blank=True)
    clear_since = models.DateTimeField(null=True, blank=True)
    no_data_since = models.DateTimeField(null=True, blank=True)
    resolved_at = models.DateTimeField(null=True, blank=True)
    value = models.FloatField()
    threshold = models.FloatField()
    reason = models.CharField(max_length=500)
    acknowledged_by = models.CharField(max_length=150, blank=True)
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    note = models.CharField(max_length=500, blank=True)
    # When messages to webhooks were written: that it fires, and that it is over.
    notified_at = models.DateTimeField(null=True, blank=True)
    end_notified_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-since", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["rule", "subject"],
                condition=~models.Q(state=State.RESOLVED.value),
                name="reliability_one_open_alert",
            )
        ]
        indexes = [models.Index(fields=["state", "-since"], name="reliability_alerts_by_state")]


class AlertRun(models.Model):
    """The one row that whoever judges alerts holds while writing, and what the last run saw."""

    at = models.DateTimeField(null=True, blank=True)
    rules = models.JSONField(default=dict)  # rule → how many subjects are ok, pending, … and why


class Silence(models.Model):
    """Keeps alerts from being told to anybody for a time; a blank matcher matches all."""

    rule = models.CharField(
        max_length=40, blank=True, choices=[(rule.name, rule.title) for rule in RULES]
    )
    pool = models.CharField(max_length=63, blank=True)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=300)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-ends_at", "-id"]


class Webhook(models.Model):
    """Where alerts are told; address and secret are credentials, and never shown."""

    name = models.CharField(max_length=63, unique=True, validators=[SLUG])
    url = models.CharField(max_length=500)
    secret = models.CharField(max_length=100)  # signs each message (HMAC-SHA256)
    pool = models.CharField(max_length=63, blank=True)  # only of this pool; blank: all
    only_critical = models.BooleanField(default=False)
    enabled = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["name"]


class WebhookDelivery(models.Model):
    """One message to one webhook: what became of it, and when it is tried again."""

    class Outcome(models.TextChoices):
        WAITING = "waiting", "waiting"
        DELIVERED = "delivered", "delivered"
        FAILED = "failed", "given up"

    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    alert = models.ForeignKey(
        Alert, null=True, on_delete=models.CASCADE, related_name="deliveries"
    )  # none: a test message
    event = models.CharField(max_length=10)  # firing, resolved, test
    message_id = models.CharField(max_length=40, unique=True)  # the same in every attempt
    body = models.TextField()
    outcome = models.CharField(max_length=10, choices=Outcome.choices, default=Outcome.WAITING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_try_at = models.DateTimeField()
    last_status = models.PositiveSmallIntegerField(null=True, blank=True)
    last_error = models.CharField(max_length=300, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    delivered_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["outcome", "next_try_at"], name="reliability_deliveries_due")
        ]
