"""RollUp and MemberRollUp: what stays of the recent store, by minute and by hour."""

from __future__ import annotations

from django.db import models


class Step(models.IntegerChoices):
    """How much time a row covers, in seconds."""

    MINUTE = 60, "minute"
    HOUR = 3600, "hour"


class RollUp(models.Model):
    """One subject over one minute or hour; a missing row is a gap, not zero.

    Subjects are named, not referenced: figures outlive what they are of, until their retention.
    """

    level = models.CharField(max_length=8)  # fleet, pool, version, node, tenant
    subject = models.CharField(max_length=310, blank=True)
    version = models.CharField(max_length=100, blank=True)  # of a pool's row: whose it is
    step_s = models.PositiveSmallIntegerField(choices=Step.choices)
    at = models.DateTimeField()  # its beginning
    covered_s = models.PositiveIntegerField()
    requests = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    figures = models.BinaryField()  # all of it, as `domain.rollups.packed` gives

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["level", "subject", "step_s", "at", "version"],
                name="telemetry_one_row_a_step",
            )
        ]
        indexes = [models.Index(fields=["step_s", "at"], name="telemetry_by_step")]


class MemberRollUp(models.Model):
    """All replicas, or all GPUs, of one shard over one minute or hour.

    A row of its own for each would be three million for a thousand replicas; in shards a chart of
    one reads no more than a thirty-second part of the fleet, however large its pool.
    """

    class Kind(models.TextChoices):
        REPLICA = "replica", "replicas by public id"
        GPU = "gpu", "GPUs by agent and index"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    shard = models.PositiveSmallIntegerField()
    step_s = models.PositiveSmallIntegerField(choices=Step.choices)
    at = models.DateTimeField()
    members = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "shard", "step_s", "at"], name="telemetry_one_shard_a_step"
            )
        ]
        indexes = [models.Index(fields=["step_s", "at"], name="telemetry_members_by_step")]


class RollUpState(models.Model):
    """The one row that whoever rolls up holds while writing, and how far hours are done."""

    hours_until = models.DateTimeField(null=True, blank=True)
    minutes_until = models.DateTimeField(null=True, blank=True)  # the end of the newest minute
