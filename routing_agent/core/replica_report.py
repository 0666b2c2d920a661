"""What the control plane is told of a replica."""

from __future__ import annotations

from routing_agent.core.replica import Replica
from routing_agent.wire import PREFIX_POLICIES, ReplicaReport


def report_of(replica: Replica, now: float) -> ReplicaReport:
    """Describe a replica to the control plane."""
    return ReplicaReport(
        replica=replica.id,
        pool=replica.pool,
        health=replica.health,
        health_reason=replica.objection() or replica.health_reason,
        warmed=replica.warmed,
        breaker=replica.breaker.state,
        inflight_requests=replica.inflight_requests,
        inflight_tokens=replica.inflight_tokens,
        engine_running=replica.figures.running,
        engine_waiting=replica.figures.waiting,
        engine_max_running=replica.max_running,
        kv_usage=replica.figures.kv_usage,
        kv_capacity_tokens=replica.kv_tokens(),
        scrape_age_s=None if replica.scraped_at is None else max(now - replica.scraped_at, 0.0),
        scrape_error=replica.scrape_error,
        process_started_at=replica.process_started_at,
        engine_version=replica.engine_version,
        requests_total=replica.requests_total,
        errors_total=replica.errors_total,
        ejections_total=replica.ejections_total,
        prompt_tokens_total=replica.prompt_tokens_total,
        cached_prompt_tokens_total=replica.cached_prompt_tokens_total,
        output_tokens_total=replica.output_tokens_total,
        preemptions_total=replica.figures.preemptions_total,
        prefix=replica.cache.report(replica.profile, replica.prefill, now)
        if replica.settings.policy in PREFIX_POLICIES
        else None,
        adapters=replica.adapters.ours,
        adapter_states=replica.adapters.report(now),
    )
