"""What the agents' newest reports say together, per replica and per agent. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.telemetry.snapshots import NoData
from routing_agent.wire import EngineProcess, PrefixReport, ReplicaReport, Report

FRESH_S = 10.0  # five missed reports; older figures are shown as what they are, not as present

Reports = Mapping[str, tuple[Report, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaNow:
    """One replica over all agents that report it; None where no agent knows."""

    age_s: float | None = None  # of the freshest report
    agents: int = 0
    unhealthy: int = 0
    health_reason: str = ""
    breakers_open: int = 0
    inflight_requests: int | None = None
    inflight_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    kv_capacity_tokens: int | None = None
    hit_rate: float | None = None
    requests_total: int | None = None
    errors_total: int | None = None
    engine_version: str = ""
    scrape_error: str = ""
    prefix: PrefixReport | None = None  # of the agent that knows most of its cache

    @property
    def is_fresh(self) -> bool:
        """Say whether any agent reported it lately."""
        return self.age_s is not None and self.age_s <= FRESH_S

    @property
    def is_broken(self) -> bool:
        """Say whether an agent keeps traffic away from it for its failures."""
        return self.is_fresh and self.breakers_open > 0


def replicas(reports: Reports | NoData) -> dict[str, ReplicaNow]:
    """Give each reported replica, summed over fresh reports; old ones count only where alone."""
    if isinstance(reports, NoData):
        return {}
    seen: dict[str, list[tuple[ReplicaReport, float]]] = {}
    for report, age_s in reports.values():
        for replica in report.replicas:
            seen.setdefault(replica.replica, []).append((replica, age_s))
    return {name: _together(views) for name, views in seen.items()}


def _together(views: list[tuple[ReplicaReport, float]]) -> ReplicaNow:
    views.sort(key=lambda v: v[1])
    used = [v for v in views if v[1] <= FRESH_S] or views[:1]
    reports = [r for r, _ in used]
    sick = [r for r in reports if r.health == "unhealthy"]
    engine = min(reports, key=lambda r: float("inf") if r.scrape_age_s is None else r.scrape_age_s)
    prompt = sum(r.prompt_tokens_total for r in reports)
    return ReplicaNow(
        age_s=used[0][1],
        agents=len(reports),
        unhealthy=len(sick),
        health_reason=next((r.health_reason for r in sick if r.health_reason), ""),
        breakers_open=sum(r.breaker != "closed" for r in reports),
        inflight_requests=sum(r.inflight_requests for r in reports),
        inflight_tokens=sum(r.inflight_tokens for r in reports),
        running=engine.engine_running,
        waiting=engine.engine_waiting,
        kv_usage=engine.kv_usage,
        kv_capacity_tokens=engine.kv_capacity_tokens,
        hit_rate=sum(r.cached_prompt_tokens_total for r in reports) / prompt if prompt else None,
        requests_total=sum(r.requests_total for r in reports),
        errors_total=sum(r.errors_total for r in reports),
        engine_version=engine.engine_version,
        scrape_error=engine.scrape_error,
        prefix=max(
            (r.prefix for r in reports if r.prefix is not None),
            key=lambda p: p.blocks,
            default=None,
        ),
    )


def kv_usage_max(now: Iterable[ReplicaNow | None]) -> float | None:
    """Give the fullest KV cache of some replicas; never a sum."""
    known = [n.kv_usage for n in now if n is not None and n.is_fresh and n.kv_usage is not None]
    return max(known, default=None)


def engine(reports: Reports | NoData, replica: str) -> EngineProcess | None:
    """Give the engine process of a replica, as the agent that started it told last."""
    if isinstance(reports, NoData):
        return None
    told = (e for report, _ in reports.values() for e in report.engines)
    return next((e for e in told if e.replica == replica), None)
