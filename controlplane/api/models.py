"""IdempotentAnswer: what a write answered, so that a repeat of it answers the same."""

from __future__ import annotations

from django.db import models


class IdempotentAnswer(models.Model):
    """One answered write, by caller and `Idempotency-Key`; written in the write's transaction."""

    caller = models.CharField(max_length=200)  # "token:ci", "user:anna"
    key = models.CharField(max_length=200)
    request_sha256 = models.CharField(max_length=64)  # over method, path and body
    status = models.PositiveSmallIntegerField(default=0)
    # As JSON text, without secrets: those are shown once and stored nowhere.
    body = models.TextField(default="")
    headers = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["caller", "key"], name="api_one_answer_per_key")
        ]
