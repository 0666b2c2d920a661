"""UsageHour: what was served to whom. UsageCursor: how far an agent's records are booked."""

from __future__ import annotations

from django.db import models

from controlplane.fleet.models import Agent


class UsageHour(models.Model):
    """One hour of one tenant's key on one model version, through one agent.

    The agent is part of the key so that agents never wait for each other's rows; readers add up.
    """

    hour = models.DateTimeField(db_index=True)
    agent = models.CharField(max_length=32)
    tenant = models.CharField(max_length=63)
    api_key = models.CharField(max_length=32, blank=True)
    model = models.CharField(max_length=200, blank=True)
    version = models.CharField(max_length=100, blank=True)
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
                fields=["hour", "agent", "tenant", "api_key", "model", "version"],
                name="usage_one_row_per_hour_and_key",
            )
        ]


class UsageCursor(models.Model):
    """The last usage record of an agent that is booked; numbers start anew with a registration."""

    agent = models.OneToOneField(Agent, on_delete=models.CASCADE, related_name="usage_cursor")
    token_sha256 = models.CharField(max_length=64)  # of the registration the numbers belong to
    acknowledged = models.PositiveBigIntegerField(default=0)
