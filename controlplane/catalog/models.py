"""Model: a public name. ModelVersion: immutable weights, with the facts that capacity needs."""

from __future__ import annotations

from django.core.validators import MinValueValidator, RegexValidator
from django.db import models

# What an OpenAI client may send as `model`: R22 asks for slash and colon.
MODEL_NAME = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9._:/+-]{0,199}\Z",
    "Use up to 200 letters, digits and . _ : / + -, starting with a letter or digit.",
)


class Kind(models.TextChoices):
    """What a model is asked for."""

    CHAT = "chat", "Chat and completions"
    EMBEDDING = "embedding", "Embeddings"


class Dtype(models.TextChoices):
    """How weights are stored; bytes a parameter are in `domain/capacity.py`."""

    BF16 = "bf16", "bf16"
    FP16 = "fp16", "fp16"
    FP32 = "fp32", "fp32"
    FP8 = "fp8", "fp8"
    INT8 = "int8", "int8"
    INT4 = "int4", "int4"


class Model(models.Model):
    """A name clients ask for, with its aliases."""

    name = models.CharField(max_length=200, unique=True, validators=[MODEL_NAME])
    kind = models.CharField(max_length=12, choices=Kind.choices, default=Kind.CHAT)
    aliases = models.JSONField(default=list, blank=True)
    description = models.CharField(max_length=300, blank=True)
    # Bytes of prompt text a token, until the engines' own figures calibrate it.
    bytes_per_token = models.FloatField(default=4.0, validators=[MinValueValidator(0.1)])
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["name"]


class ModelVersion(models.Model):
    """Immutable weights plus engine settings, and the figures memory planning needs."""

    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="versions")
    name = models.CharField(max_length=100, validators=[MODEL_NAME])  # unique within its model
    source = models.CharField(max_length=300, blank=True)  # where the weights come from
    parameters = models.PositiveBigIntegerField(null=True, blank=True)
    layers = models.PositiveIntegerField(null=True, blank=True)
    kv_heads = models.PositiveIntegerField(null=True, blank=True)
    head_dim = models.PositiveIntegerField(null=True, blank=True)
    dtype = models.CharField(max_length=8, choices=Dtype.choices, default=Dtype.BF16)
    kv_dtype = models.CharField(max_length=8, choices=Dtype.choices, default=Dtype.BF16)
    context_tokens = models.PositiveIntegerField(null=True, blank=True)
    engine = models.CharField(max_length=20, default="vllm")
    engine_version = models.CharField(max_length=40, blank=True)
    engine_arguments = models.JSONField(default=dict, blank=True)
    retired_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["model__name", "-created_at"]
        constraints = [
            models.UniqueConstraint(fields=["model", "name"], name="catalog_version_name_in_model")
        ]
