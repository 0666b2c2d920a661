"""The demo fleet: models with their true figures, pools, tenants with keys, simulated replicas.

Made piece by piece where missing: a second run changes nothing, and what an operator changed or
drained meanwhile stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.text import slugify

from controlplane.audit.models import AuditEvent
from controlplane.catalog import services as catalog
from controlplane.catalog.models import Kind, Model
from controlplane.domain.replica_states import Event
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Pool, Replica
from controlplane.fleet.services.replicas import WITHOUT_TRAFFIC
from controlplane.routing.first_start import ACTOR, secrets_dir, write_private
from controlplane.tenants import services as tenants
from controlplane.tenants.keys import digest
from controlplane.tenants.models import ApiKey, Tenant

REASON = "demo fleet"
KEY_FILE = "traffic-keys.json"
KEY_NAME = "demo"
# What apps above this one add to the demo fleet, by their name.
MORE: dict[str, Callable[[], None]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoModel:
    """A model of the demo with the figures its makers publish."""

    pool: str
    kind: str = Kind.CHAT
    aliases: tuple[str, ...] = ()
    description: str = ""
    version: str = "v1"
    facts: Mapping[str, Any] = field(default_factory=dict)


MODELS: Final[Mapping[str, DemoModel]] = {
    "qwen2.5-7b-instruct": DemoModel(
        pool="chat",
        aliases=("chat", "gpt-4o-mini"),
        description="General chat, 7.6 billion parameters",
        facts={
            "source": "Qwen/Qwen2.5-7B-Instruct",
            "parameters": 7_615_616_512,
            "layers": 28,
            "kv_heads": 4,
            "head_dim": 128,
            "context_tokens": 32_768,
        },
    ),
    "llama-3.1-8b-instruct": DemoModel(
        pool="chat",
        aliases=("chat", "gpt-4o-mini"),
        description="General chat, 8 billion parameters",
        facts={
            "source": "meta-llama/Llama-3.1-8B-Instruct",
            "parameters": 8_030_261_248,
            "layers": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "context_tokens": 131_072,
        },
    ),
    "mistral-7b-instruct": DemoModel(
        pool="growing",
        aliases=("growing",),
        description="General chat, 7 billion parameters; its engines are started by need",
        facts={
            "source": "mistralai/Mistral-7B-Instruct-v0.3",
            "parameters": 7_248_023_552,
            "layers": 32,
            "kv_heads": 8,
            "head_dim": 128,
            "context_tokens": 32_768,
        },
    ),
    "bge-m3": DemoModel(
        pool="embeddings",
        kind=Kind.EMBEDDING,
        aliases=("embed",),
        description="Text embeddings in many languages",
        facts={
            "source": "BAAI/bge-m3",
            "parameters": 567_754_752,
            "layers": 24,
            "dtype": "fp16",
            "context_tokens": 8_192,
        },
    ),
}

# Slug, name, priority (0 is served first).
TENANTS: Final = (
    ("acme", "Acme Corporation", 3),
    ("globex", "Globex", 5),
    ("initech", "Initech", 5),
    ("umbrella", "Umbrella Batch Works", 8),
)


@dataclass(frozen=True, slots=True)
class Engine:
    """A simulated engine on this machine."""

    port: int
    model: str


def ensure_demo(engines: list[Engine], nodes: list[str]) -> dict[str, Any]:
    """Make what is missing of the demo fleet and give its summary."""
    names = list(dict.fromkeys(engine.model for engine in engines))
    for name in names:
        ensure_model(name)
    _forget_replicas_elsewhere(engines)
    for number, engine in enumerate(engines):
        node = nodes[number % len(nodes)] if nodes else None
        _ensure_replica(engine, node, gpu=number // max(1, len(nodes)))
    for add in MORE.values():
        add()
    kinds = dict(Model.objects.filter(name__in=names).values_list("name", "kind"))
    chat = next((name for name in names if kinds[name] == Kind.CHAT), None)
    embedding = next((name for name in names if kinds[name] == Kind.EMBEDDING), None)
    keys = _ensure_tenants(chat_model=chat, embedding_model=embedding)
    return {
        "api_key": keys[0]["key"],
        "model": chat,
        "embedding_model": embedding,
        "tenants": [key["name"] for key in keys],
        "key_file": str(secrets_dir() / KEY_FILE),
    }


def _demo_model(name: str) -> DemoModel:
    return MODELS.get(name) or DemoModel(pool=slugify(name.replace(".", "-"))[:63].strip("-"))


def ensure_model(name: str) -> None:
    """Make a model with its version and pool, each where it is missing."""
    demo = _demo_model(name)
    if not Model.objects.filter(name=name).exists():
        catalog.create_model(
            name=name,
            kind=demo.kind,
            aliases=_free_aliases(demo),
            description=demo.description,
            actor=ACTOR,
            reason=REASON,
        )
        catalog.create_version(
            model=name, name=demo.version, actor=ACTOR, reason=REASON, **demo.facts
        )
    if not Pool.objects.filter(slug=demo.pool).exists():
        fleet.create_pool(
            slug=demo.pool,
            model=name,
            version=demo.version,
            description=demo.description,
            overload_policy=Pool.Overload.QUEUE,
            owner="demo",
            actor=ACTOR,
            reason=REASON,
        )


def _free_aliases(demo: DemoModel) -> list[str]:
    taken = {
        alias for aliases in Model.objects.values_list("aliases", flat=True) for alias in aliases
    }
    return [alias for alias in demo.aliases if alias not in taken]


def _forget_replicas_elsewhere(engines: list[Engine]) -> None:
    """Delete the replicas of an earlier start on other ports; those an operator added stay."""
    registered = AuditEvent.objects.filter(
        verb="replica.register", target_kind="replica", actor=ACTOR.name, reason=REASON
    )
    ours = Replica.objects.filter(public_id__in=registered.values("target"))
    for replica in ours.exclude(url__in=[_url(engine) for engine in engines]):
        reason = "its engine is started on another port now"
        if replica.state not in WITHOUT_TRAFFIC:
            fleet.move_replica(
                replica_id=replica.public_id, event=Event.GONE, actor=ACTOR, reason=reason
            )
        fleet.delete_replica(replica_id=replica.public_id, actor=ACTOR, reason=reason)


def _url(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.port}"


def _ensure_replica(engine: Engine, node: str | None, gpu: int) -> None:
    url = _url(engine)
    if Replica.objects.filter(url=url).exists():
        return
    fleet.register_replica(
        pool=_demo_model(engine.model).pool,
        url=url,
        node=node,
        served_model=engine.model,
        gpu_indices=[gpu] if gpu < 2 else [],
        actor=ACTOR,
        reason=REASON,
    )


def _ensure_tenants(*, chat_model: str | None, embedding_model: str | None) -> list[dict[str, str]]:
    """Make the tenants and their keys, and write the keys where the sample traffic reads them."""
    path = secrets_dir() / KEY_FILE
    known = _known_keys(path.read_text() if path.exists() else "")
    keys = [_ensure_key(slug, name, priority, known) for slug, name, priority in TENANTS]
    content = {"tenants": keys, "chat_model": chat_model, "embedding_model": embedding_model}
    write_private(path, json.dumps(content, indent=1) + "\n")
    return keys


def _known_keys(text: str) -> dict[str, str]:
    """Read an earlier key file; one that cannot be read is written anew."""
    try:
        return {entry["name"]: entry["key"] for entry in json.loads(text)["tenants"]}
    except (ValueError, KeyError, TypeError):
        return {}


def _ensure_key(slug: str, name: str, priority: int, known: Mapping[str, str]) -> dict[str, str]:
    if not Tenant.objects.filter(slug=slug).exists():
        tenants.create_tenant(slug=slug, name=name, priority=priority, actor=ACTOR, reason=REASON)
    live = ApiKey.objects.filter(tenant__slug=slug, revoked_at=None)
    if slug in known and live.filter(sha256=digest(known[slug])).exists():
        return {"name": slug, "key": known[slug]}
    for lost in live.filter(name=KEY_NAME):  # its text is gone: nobody can use it
        tenants.revoke_key(public_id=lost.public_id, actor=ACTOR, reason="its text was lost")
    issued = tenants.issue_key(tenant=slug, name=KEY_NAME, actor=ACTOR, reason=REASON)
    return {"name": slug, "key": issued.plaintext}
