"""Tells the other agents what this one placed, and hears of them, by way of reports.

It is advice: what is lost or late costs a choice that could have been better, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import pack, unpack

from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.gossip import Gossip, Told
from routing_agent.wire import AgentPlaced, Placed

_WORD = 8  # bytes of a hash


class PlacementExchange:
    """One agent's side of it, over all pools in which prefixes decide."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._heard: dict[str, int] = {}  # number of the newest report, by agent
        # Set where other processes choose: they hear it too.
        self.on_heard: Callable[[tuple[AgentPlaced, ...]], None] | None = None

    def take(self, now: float) -> tuple[Placed, ...] | None:
        """Give what was placed since the last call; None where no pool goes by prefixes."""
        pools = [pool for pool in self._fleet.pools.values() if pool.uses_prefixes]
        if not pools:
            return None
        return tuple(one for pool in pools for one in _told(pool, now))

    def hear(self, others: Iterable[AgentPlaced], now: float) -> None:
        """Take in what other agents placed, each of their reports once.

        While nobody else is heard of, nothing is kept to be told.
        """
        heard: dict[str, int] = {}
        news: list[AgentPlaced] = []
        for other in others:
            heard[other.agent] = other.number
            if self._heard.get(other.agent) != other.number:
                news.append(other)
                for one in other.placed:
                    self._hear(other.agent, one, now)
        if news and self.on_heard is not None:
            self.on_heard(tuple(news))
        self._heard = heard
        for pool in self._fleet.pools.values():
            if not heard or not pool.uses_prefixes:
                pool.gossip = None
            elif pool.gossip is None:
                pool.gossip = Gossip()

    def _hear(self, agent: str, one: Placed, now: float) -> None:
        pool = self._fleet.pools.get(one.pool)
        if pool is None or not pool.uses_prefixes:
            return
        count = len(one.hashes) // _WORD
        told = Told(
            list(unpack(f"<{count}Q", one.hashes[: count * _WORD])),
            one.inserted_blocks,
            one.work_tokens,
            one.waiting,
            one.waiting_tokens,
        )
        pool.hear(agent, {one.replica: told}, now=now)


def _told(pool: PoolState, now: float) -> list[Placed]:
    return [
        Placed(
            pool=pool.pool.name,
            replica=replica,
            hashes=pack(f"<{len(told.hashes)}Q", *told.hashes),
            inserted_blocks=max(told.inserted_blocks, 0),
            work_tokens=max(round(told.work_tokens), 0),
            waiting=told.waiting,
            waiting_tokens=max(told.waiting_tokens, 0.0),
        )
        for replica, told in pool.tell(now).items()
    ]
