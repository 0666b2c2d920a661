"""What workers count, added up in the supervisor: the counters of one agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import Replica
from routing_agent.metrics import FinishedRequest, Metrics
from routing_agent.workers import messages as say
from routing_agent.workers.counts import read
from routing_agent.workers.prefill import WatchedProfile


class Sums:
    """Takes in what workers tell."""

    def __init__(self, fleet: Fleet, metrics: Metrics) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self.on_finished: Callable[[FinishedRequest], None] | None = None
        self._beliefs: dict[Replica, dict[int, say.AtReplica]] = {}

    def finished(self, message: say.Finished) -> None:
        """Count requests that ended."""
        for common, owns in message.alike:
            prompt_tokens = cached_tokens = output_tokens = 0
            for own in owns:
                record = read(common, own)
                prompt_tokens += record.prompt_tokens
                cached_tokens += record.cached_prompt_tokens
                output_tokens += record.output_tokens
                self._metrics.request_finished(record)
                if self.on_finished is not None:
                    self.on_finished(record)
            replica = self._fleet.replicas.get(record.replica)
            if replica is not None:
                replica.prompt_tokens_total += prompt_tokens
                replica.cached_prompt_tokens_total += cached_tokens
                replica.output_tokens_total += output_tokens

    def counted(self, message: say.Counted) -> None:
        """Count what is not in records."""
        metrics = self._metrics
        for pool, model, version, code, n in message.requests:
            metrics.requests[(pool, model, version, code)] += n
        for pool, version, n in message.retries:
            metrics.retries_total += n
            metrics.pools[(pool, version)].tokens.add("retries", n)
        for pool, version, policy, n in message.shed:
            metrics.shed_total[policy] += n
            metrics.pools[(pool, version)].tokens.add("shed", n)
        for pool, reason, n in message.spills:
            metrics.spills_total[(pool, reason)] += n
        metrics.held_total.update(message.held)
        for name, n in message.moved.items():
            if name in self._fleet.pools:
                self._fleet.pools[name].sessions.moved_total += n
        for model, path, answered_by, counts in message.paths:
            known = metrics.paths.setdefault((model, path, answered_by), [0, 0, 0, 0])
            known[:] = [a + b for a, b in zip(known, counts, strict=True)]
        metrics.shadows.update(message.shadows)
        metrics.decisions += message.decisions
        metrics.decision_sum_s += message.decision_sum_s

    def at_replicas(self, worker: int, message: say.AtReplicas) -> None:
        """Add what a worker did at replicas."""
        for told in message.replicas:
            replica = self._fleet.replicas.get(told.replica)
            if replica is None:
                continue
            replica.requests_total += told.requests
            replica.errors_total += told.errors
            replica.ejections_total += told.ejections
            replica.cache.expected_tokens_total += told.expected_tokens
            self._believe(replica, worker, told)
            last = replica.last_token_at
            if told.last_token_at is not None and (last is None or told.last_token_at > last):
                replica.last_token_at = told.last_token_at

    def forget(self, worker: int) -> None:
        """Drop what a worker that is gone believed; what it counted stays."""
        current = set(self._fleet.replicas.values())
        self._beliefs = {r: told for r, told in self._beliefs.items() if r in current}
        for replica, told in self._beliefs.items():
            gone = told.pop(worker, None)
            if gone is not None and gone.adapters:
                replica.adapters.running.subtract(gone.adapters)

    def _believe(self, replica: Replica, worker: int, told: say.AtReplica) -> None:
        """Report what workers believe of a cache: they hear of all placements, so the most do."""
        beliefs = self._beliefs.setdefault(replica, {})
        beliefs[worker] = told
        profile = replica.profile
        if isinstance(profile, WatchedProfile):
            profile.blocks = max(one.blocks for one in beliefs.values())
            profile.capacity_blocks = max(one.capacity_blocks for one in beliefs.values())
            speeds = [one.tokens_per_s for one in beliefs.values()]
            replica.prefill.tokens_per_s = sum(speeds) / len(speeds)
            replica.cache.events = told.kv_events
        running: Counter[str] = Counter()
        for one in beliefs.values():
            running.update(one.adapters)
        replica.adapters.running = running
