"""Own zone first, until the others would begin sooner by more than the pool's margin.

A request that leaves its agent's zone pays for the way twice, in time and often in money. How much
sooner the other zone must be is `PoolSettings.zone_margin_s`; 0: zones do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from routing_agent.core.replica import Replica
from routing_agent.wire import Pool

Spill = Literal["", "no_replica", "prefix", "load"]

WORDS: Final[dict[Spill, str]] = {
    "no_replica": "no replica of zone '{}' can take it",
    "prefix": "its session or prefix is outside zone '{}'",
    "load": "zone '{}' is slower by more than the margin",
}


def own_zone(node: str, given: str, pools: Iterable[Pool]) -> str:
    """Give an agent's zone: that of its node's replicas as the table says, else as was `given`."""
    if node:
        for pool in pools:
            for endpoint in pool.endpoints:
                if endpoint.node == node and endpoint.zone:
                    return endpoint.zone
    return given


def set_apart(replicas: Sequence[Replica], zone: str, margin_s: float) -> bool:
    """Note on each replica what going there costs more; true if any choice depends on it."""
    is_far = [bool(zone and r.endpoint.zone and r.endpoint.zone != zone) for r in replicas]
    counts = margin_s > 0 and any(is_far) and not all(is_far)
    for replica, far in zip(replicas, is_far, strict=True):
        replica.detour_s = margin_s if far and counts else 0.0
    return counts


def nearby(usable: Sequence[Replica], home: Replica | None) -> Sequence[Replica]:
    """Give the replicas of the own zone, or all, if those have more than the margin more to do.

    For policies that do not reckon in seconds. A session that has its `home` elsewhere stays.
    """
    near = [replica for replica in usable if not replica.detour_s]
    if not near or len(near) == len(usable) or (home is not None and home.detour_s):
        return usable
    least_s = min(map(_work_s, near))
    far_s = min(_work_s(r) + r.detour_s for r in usable if r.detour_s)
    return near if least_s <= far_s else usable


def spill(usable: Sequence[Replica], *, is_known: bool) -> Spill:
    """Say why a request leaves its agent's zone; `is_known`: its session or prefix is there."""
    if all(replica.detour_s for replica in usable):
        return "no_replica"
    return "prefix" if is_known else "load"


def _work_s(replica: Replica) -> float:
    return replica.inflight_tokens / replica.prefill.tokens_per_s / replica.endpoint.weight
