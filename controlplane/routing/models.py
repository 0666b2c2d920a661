"""Publication (one row), RoutingEpoch and Delivery: what was published, and who has it."""

from __future__ import annotations

from django.db import models

from controlplane.fleet.models import Agent


class Publication(models.Model):
    """A single row: the lineage of this database, its newest epoch and the revision that covers.

    One publisher wins by compare-and-set on `epoch` and `published_revision`.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    lineage = models.CharField(max_length=36)
    epoch = models.PositiveBigIntegerField(default=0)
    published_revision = models.PositiveBigIntegerField(default=0)
    # Why publishing stopped, for example "agent node-2 runs epoch 41, newer than ours (17)".
    halted_reason = models.CharField(max_length=300, blank=True)
    halted_at = models.DateTimeField(null=True, blank=True)
    highest_reported_epoch = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(id=1), name="routing_one_publication")
        ]


class RoutingEpoch(models.Model):
    """One published table, whole; its bytes are what agents get (credentials included)."""

    epoch = models.PositiveBigIntegerField(unique=True)
    fleet_revision = models.PositiveBigIntegerField()
    digest = models.CharField(max_length=64)
    table = models.BinaryField()  # wire.RoutingTable as JSON
    # Rows left out because they would not compile: [{"object": …, "problem": …}].
    left_out = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    reason = models.CharField(max_length=200, blank=True)

    class Meta:
        ordering = ["-epoch"]


class Delivery(models.Model):
    """What became of one epoch at one agent."""

    class Outcome(models.TextChoices):
        PENDING = "pending", "Pending"
        APPLIED = "applied", "Applied"
        REFUSED = "refused", "Refused"
        INVALID = "invalid", "Invalid"
        UNREACHABLE = "unreachable", "Unreachable"
        SUPERSEDED = "superseded", "Superseded"

    agent = models.ForeignKey(Agent, on_delete=models.CASCADE, related_name="deliveries")
    epoch = models.ForeignKey(RoutingEpoch, on_delete=models.CASCADE, related_name="deliveries")
    outcome = models.CharField(max_length=12, choices=Outcome.choices, default=Outcome.PENDING)
    detail = models.CharField(max_length=300, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    first_tried_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    source = models.CharField(max_length=6, default="push")  # push, or pull repair

    class Meta:
        ordering = ["-epoch", "agent"]
        constraints = [
            models.UniqueConstraint(fields=["agent", "epoch"], name="routing_one_delivery_each")
        ]


class LoopRun(models.Model):
    """When a control loop last ran, how long it took and what it said; shown on the System page."""

    name = models.CharField(max_length=40, primary_key=True)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    duration_s = models.FloatField(null=True, blank=True)
    outcome = models.CharField(max_length=200, blank=True)
    interval_s = models.FloatField()
