"""Model: a public name. ModelVersion: immutable weights. Adapter: a tenant's LoRA for a model."""

from __future__ import annotations

from django.core.validators import MinValueValidator, RegexValidator
from django.db import models
from django.db.models.functions import Lower

from controlplane.tenants.models import Tenant

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
    # Which model answers, where it is not this one alone: wire.ComplexityRule, wire.CascadeRule.
    complexity = models.JSONField(null=True, blank=True)
    cascade = models.JSONField(null=True, blank=True)
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


class Adapter(models.Model):
    """A tenant's LoRA adapter: a name that means its active version."""

    public_id = models.CharField(max_length=32, unique=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="adapters")
    name = models.CharField(max_length=100)  # rule: domain.adapters.checked_name
    model = models.ForeignKey(Model, on_delete=models.PROTECT, related_name="adapters")
    shared_with = models.ManyToManyField(Tenant, related_name="shared_adapters", blank=True)
    pinned = models.BooleanField(default=False)  # never evicted
    last_used_at = models.DateTimeField(null=True, blank=True)  # by the usage booked so far
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    updated_at = models.DateTimeField(auto_now=True)
    # Its name means nothing from then on; the row stays until no engine lists it any more.
    deleted_at = models.DateTimeField(null=True, blank=True)
    version = models.PositiveIntegerField(default=1)  # optimistic locking

    class Meta:
        ordering = ["tenant__slug", "name"]
        constraints = [
            # Two adapters that differ by letter case alone would be taken for each other.
            models.UniqueConstraint(
                Lower("name"),
                "tenant",
                condition=models.Q(deleted_at__isnull=True),
                name="catalog_adapter_name_in_tenant",
            )
        ]


class AdapterVersion(models.Model):
    """One upload that was accepted: immutable, known by the SHA-256 of what is stored."""

    class State(models.TextChoices):
        INCOMING = "incoming", "Being loaded"
        ACTIVE = "active", "Active"
        RETIRED = "retired", "Replaced"

    adapter = models.ForeignKey(Adapter, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    state = models.CharField(max_length=8, choices=State.choices)
    digest = models.CharField(max_length=64)
    served_name = models.CharField(max_length=200)  # what engines know it by
    files = models.JSONField()  # of wire.AdapterFile
    size_bytes = models.PositiveBigIntegerField()
    rank = models.PositiveIntegerField()
    alpha = models.FloatField()
    target_modules = models.JSONField(default=list)
    dtype = models.CharField(max_length=20)
    tensors = models.PositiveIntegerField(default=0)
    base_name = models.CharField(max_length=500, blank=True)  # as its configuration says
    created_at = models.DateTimeField(auto_now_add=True)
    created_by = models.CharField(max_length=150)
    removed_at = models.DateTimeField(null=True, blank=True)  # its files are gone

    class Meta:
        ordering = ["adapter", "-number"]
        constraints = [
            models.UniqueConstraint(
                fields=["adapter", "number"], name="catalog_adapter_version_number"
            ),
            models.UniqueConstraint(
                fields=["adapter", "state"],
                condition=models.Q(state__in=["incoming", "active"]),
                name="catalog_one_adapter_version_per_state",
            ),
        ]
        indexes = [models.Index(fields=["digest"], name="catalog_adapter_digest")]
