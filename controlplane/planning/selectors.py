"""What a pool tells the planner: its version's facts, its GPUs, its peak; and plans from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from controlplane.catalog.models import ModelVersion
from controlplane.domain import planning
from controlplane.domain.errors import Invalid
from controlplane.domain.planning import Plan
from controlplane.domain.planning_inputs import Known, gathered
from controlplane.domain.replica_states import State
from controlplane.fleet import selectors as fleet
from controlplane.fleet.models import Agent, Node, Replica
from controlplane.telemetry import peaks
from controlplane.telemetry.rolling import POOL

PEAK_DAYS: Final = 90  # a quarter has its busy days, and last year's load says little
_GONE: Final = (State.STOPPED, State.FAILED)
# Input of the planner: column of the version.
_VERSION_FACTS: Final = {
    "parameters": "parameters",
    "layers": "layers",
    "kv_heads": "kv_heads",
    "head_size": "head_dim",
    "longest_context_tokens": "context_tokens",
    "weight_dtype": "dtype",
    "kv_dtype": "kv_dtype",
}


@dataclass(slots=True)
class PoolFacts:
    """What is known of a pool by input, and why the rest is not."""

    known: dict[str, Known] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and what the pool it is for could not tell."""

    plan: Plan
    missing: Mapping[str, str]


def planned(*, entered: Mapping[str, Any], pool: str | None, now: datetime) -> Planned:
    """Plan from what was entered and, for the rest, from what a pool tells.

    Raises:
        NotFound: there is no such pool.
        Invalid: an input is unknown or impossible, inputs contradict, or there are too few.
    """
    facts = pool_facts(pool, now=now) if pool else PoolFacts()
    inputs = gathered(entered, facts.known)
    missing = {name: why for name, why in facts.missing.items() if name not in inputs}
    try:
        return Planned(plan=planning.plan(inputs), missing=missing)
    except Invalid as problem:
        if problem.code != "too_little" or not missing:
            raise
        reasons = "; ".join(dict.fromkeys(missing.values()))
        message = f"{problem.message} The pool could not tell: {reasons}."
        raise Invalid(message, code=problem.code) from problem


def pool_facts(slug: str, *, now: datetime) -> PoolFacts:
    """Gather what is known of a pool; raise NotFound if there is none of this name."""
    pool = fleet.pool(slug)
    facts = PoolFacts()
    _add_version(facts, pool.model_version)
    _add_gpus(facts, slug)
    _add_peak(facts, slug, now)
    return facts


def _add_version(facts: PoolFacts, version: ModelVersion) -> None:
    name = f"{version.model.name}:{version.name}"
    for told, column in _VERSION_FACTS.items():
        value = getattr(version, column)
        if value is None:
            facts.missing[told] = f"version {name} is registered without its facts"
        else:
            facts.known[told] = Known(value=value, source=f"registered for version {name}")


def _add_gpus(facts: PoolFacts, slug: str) -> None:
    held = fleet.replicas(pool=slug).exclude(state__in=_GONE).exclude(node=None)
    replicas = [r for r in held.select_related("node") if r.gpu_indices]
    if not replicas:
        why = f"no replica of pool {slug} is registered with the GPUs it runs on"
        facts.missing |= {"gpu_memory_gb": why, "gpus_per_replica": why}
        return
    counts = [len(r.gpu_indices) for r in replicas]
    most = f"the most of {len(counts)} replicas" if len(set(counts)) > 1 else "as its replicas have"
    facts.known["gpus_per_replica"] = Known(value=max(counts), source=f"pool {slug}, {most}")
    cards = [(card, r.node) for r in replicas for card in _cards(r) if card.get("memory_bytes")]
    if not cards:
        facts.missing["gpu_memory_gb"] = (
            f"no node of pool {slug} says how much memory its GPUs have"
        )
        return
    facts.known["gpu_memory_gb"] = _smallest(cards)


def _cards(replica: Replica) -> list[dict[str, Any]]:
    return [
        g for g in (replica.node.gpus if replica.node else []) if g["index"] in replica.gpu_indices
    ]


def _smallest(cards: list[tuple[dict[str, Any], Node | None]]) -> Known:
    """Give the memory of the smallest GPU: every replica has to fit where it is."""
    card, node = min(cards, key=lambda found: found[0]["memory_bytes"])
    kinds = {c["memory_bytes"] for c, _ in cards}
    which = f", the smallest of {len(kinds)} kinds" if len(kinds) > 1 else ""
    invented = " (simulated)" if card.get("simulated") else ""
    agent = Agent.objects.filter(node=node).order_by("-last_seen_at").first() if node else None
    seen_at = agent.last_seen_at if agent else None
    by = "by its agent" if seen_at else "as declared"
    name = node.name if node else ""
    return Known(
        value=card["memory_bytes"] / 1e9,
        source=f"{card['model']}{invented} on node {name}, {by}{which}",
        at=seen_at,
    )


def _add_peak(facts: PoolFacts, slug: str, now: datetime) -> None:
    found = peaks.peak(POOL, slug, since=now - timedelta(days=PEAK_DAYS))
    if found is None:
        facts.missing["peak_requests_per_s"] = (
            f"nothing was reported of pool {slug} in {PEAK_DAYS} days"
        )
        return
    hours = found.covered_s / 3600
    facts.known["peak_requests_per_s"] = Known(
        value=round(found.requests_per_s, 3),
        source=f"busiest 5 s of pool {slug} in the last {PEAK_DAYS} days"
        f" ({hours:,.1f} h of them known), from roll-ups",
        at=found.at,
    )
