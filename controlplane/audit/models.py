"""AuditEvent: one change. FleetRevision: how many changes to the fleet there have been."""

from __future__ import annotations

from django.db import models


class FleetRevision(models.Model):
    """A single row: raised in the transaction of each change that a routing table must show.

    It lives here because every app that changes the fleet also records the change, and `audit` is
    the lowest app they share.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    revision = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(id=1), name="audit_one_fleet_revision")
        ]


class AuditEvent(models.Model):
    """One change: who, what, on what, why, before and after. Never edited."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    actor = models.CharField(max_length=150)
    actor_kind = models.CharField(max_length=20)  # user, token, agent, loop, command
    verb = models.CharField(max_length=60, db_index=True)  # "replica.drain"
    target_kind = models.CharField(max_length=40)
    target = models.CharField(max_length=200)  # the name a person knows it by
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    # The fleet revision this change caused; None when no routing table is concerned.
    fleet_revision = models.PositiveBigIntegerField(null=True)

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["target_kind", "target", "-id"], name="audit_by_target")]
