"""UsageHour: what was served to whom. UsageCursor: how far it is booked. RequestRecord: lives."""

from __future__ import annotations

from django.db import models

from controlplane.fleet.models import Agent


class UsageHour(models.Model):
    """One hour of one tenant's key on one model version and adapter, through one agent.

    The agent is part of the key so that agents never wait for each other's rows; readers add up.
    """

    hour = models.DateTimeField(db_index=True)
    agent = models.CharField(max_length=32)
    tenant = models.CharField(max_length=63)
    api_key = models.CharField(max_length=32, blank=True)
    model = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=100, blank=True)
    adapter = models.CharField(max_length=200, blank=True)  # its served name
    requests = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    estimated = models.PositiveBigIntegerField(default=0)  # requests whose tokens we counted
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_prompt_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["-hour", "tenant"]
        constraints = [
            models.UniqueConstraint(
                fields=["hour", "agent", "tenant", "api_key", "model", "version", "adapter"],
                name="usage_one_row_per_hour_and_key",
            )
        ]


class UsageCursor(models.Model):
    """The last usage record of an agent that is booked; numbers start anew with a registration."""

    agent = models.OneToOneField(Agent, on_delete=models.CASCADE, related_name="usage_cursor")
    token_sha256 = models.CharField(max_length=64)  # of the registration the numbers belong to
    acknowledged = models.PositiveBigIntegerField(default=0)


class RequestRecord(models.Model):
    """The life of one request that an agent kept: every failure, and a share of the rest."""

    uid = models.CharField(max_length=32, unique=True)  # booked once, however often it is sent
    request_id = models.CharField(max_length=128, db_index=True)  # a client's own may repeat
    trace_id = models.CharField(max_length=32, blank=True, db_index=True)
    received_at = models.DateTimeField(db_index=True)
    node = models.CharField(max_length=253, blank=True)  # whose agent carried it
    tenant = models.CharField(max_length=63, blank=True)
    api_key = models.CharField(max_length=32, blank=True)
    model = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=100, blank=True)
    pool = models.CharField(max_length=63, blank=True)
    replica = models.CharField(max_length=64, blank=True)
    adapter = models.CharField(max_length=200, blank=True)
    path = models.CharField(max_length=100, blank=True)
    status = models.PositiveSmallIntegerField()
    failed = models.BooleanField()
    error = models.CharField(max_length=64, blank=True)
    kept = models.CharField(max_length=16)  # failure, sampled or traced
    attempts = models.PositiveSmallIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_prompt_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    estimated = models.BooleanField(default=False)
    queue_wait_s = models.FloatField(default=0.0)
    ttft_s = models.FloatField(null=True, blank=True)
    e2e_s = models.FloatField(default=0.0)
    life = models.JSONField()  # the whole wire.RequestRecord

    class Meta:
        ordering = ["-failed", "-received_at", "-pk"]  # problems first
        indexes = [
            models.Index(fields=["-failed", "-received_at", "-id"], name="requests_problems_first"),
            models.Index(fields=["status", "-received_at"], name="requests_by_status"),
            models.Index(fields=["pool", "-received_at"], name="requests_by_pool"),
            models.Index(fields=["tenant", "-received_at"], name="requests_by_tenant"),
        ]
