"""What the supervisor sees of engines, and how workers take it over.

Level, not edge: all that is known of a replica is sent whenever any of it changed.
"""

from __future__ import annotations

from typing import cast

from routing_agent.core.fleet import Fleet
from routing_agent.core.replica import DoubtSource, Health, Replica
from routing_agent.workers.messages import Seen
from routing_agent.workers.replica import SharedReplica


def see(replica: Replica) -> Seen:
    """Write down what is known of a replica from probes and scrapes."""
    return Seen(
        replica=replica.id,
        health=replica.health,
        health_reason=replica.health_reason,
        figures=replica.figures,
        scraped_at=replica.scraped_at,
        scrape_error=replica.scrape_error,
        inflight_at_scrape=replica.inflight_at_scrape,
        others_inflight=replica.others_inflight,
        others_waiting=replica.others_waiting,
        restarted_at=replica.restarted_at,
        process_started_at=replica.process_started_at,
        doubts={str(source): why for source, why in replica.doubts.items()},
        max_running=replica.max_running,
        kv_capacity_tokens=replica.kv_capacity_tokens,
        model_names=replica.model_names,
        adapters=replica.adapters.listed,
        ramp_from=replica.ramp_from,
    )


class Observer:
    """Finds out what is new since the last look."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._told: dict[str, Seen] = {}

    def news(self) -> list[Seen]:
        """Give what changed since the last call."""
        seen = {name: see(replica) for name, replica in self._fleet.replicas.items()}
        told, self._told = self._told, seen
        return [one for name, one in seen.items() if told.get(name) != one]

    def all(self) -> list[Seen]:
        """Give everything, for a worker that knows nothing yet."""
        return [see(replica) for replica in self._fleet.replicas.values()]


def show(replica: SharedReplica, seen: Seen, now: float) -> None:
    """Take over what the supervisor has seen of a replica."""
    if seen.restarted_at is not None and seen.restarted_at != replica.restarted_at:
        replica.note_restart(seen.restarted_at)
    if seen.health != replica.health and seen.health != "unknown":
        replica.note_health(seen.health == "healthy", seen.health_reason, now)
    replica.health, replica.health_reason = cast(Health, seen.health), seen.health_reason
    replica.process_started_at = seen.process_started_at
    replica.model_names = seen.model_names
    if replica.adapters.listed != seen.adapters:
        replica.adapters.note_listed(seen.adapters, now)
    replica.seen_adapters = seen.adapters
    replica.doubts = cast(dict[DoubtSource, str], dict(seen.doubts))
    replica.note_facts(kv_capacity_tokens=seen.kv_capacity_tokens, max_running=seen.max_running)
    replica.look()
    if seen.scraped_at is not None and seen.scraped_at != replica.scraped_at:
        replica.note_scrape(seen.figures, seen.scraped_at)
        replica.inflight_at_scrape = seen.inflight_at_scrape
        replica.others_inflight = seen.others_inflight
        replica.others_waiting = seen.others_waiting
    if seen.scrape_error:
        replica.note_scrape_error(seen.scrape_error)
    replica.take_over_ramp(seen.ramp_from)
