"""What agents tell one another of where prompts went: advisory, small, bounded.

An agent sees only its own requests. So that a conversation whose turns come through several agents
finds its cache all the same, each tells the others the blocks that it placed lately, at a few
places of each prompt, and how many blocks in all: what others insert evicts what we inserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Final

import msgspec

from routing_agent.core.prefix_index import told_places

# 64 KiB of 8-byte hashes a report.
MOST_HASHES: Final = 8192
# How our insertions compare with those of the others is judged over about so long.
SHARE_LIFE_S: Final = 300.0
# What another agent has waiting is believed for three of its reports.
TOLD_LIFE_S: Final = 6.0
# What it told directly of its load, which it repeats twice a second.
LOAD_LIFE_S: Final = 2.0


class Told(msgspec.Struct):
    """What one agent placed on one replica since it last told."""

    hashes: list[int]
    inserted_blocks: int = 0  # new to the replica, as the agent believes
    work_tokens: int = 0  # that it had to compute of what was placed
    waiting: int = 0  # prompts of it that had no first token yet, when it told
    waiting_tokens: float = 0.0  # what was left to compute of these


class Gossip:
    """What an agent of one pool has to tell."""

    __slots__ = ("_count", "_told")

    def __init__(self) -> None:
        self._told: dict[str, Told] = {}
        self._count = 0

    def note(self, replica: str, blocks: Sequence[int], matching: int, work_tokens: int) -> None:
        """Note a prompt that was placed; one that is too much for a report counts only."""
        hashes = [blocks[place - 1] for place in told_places(len(blocks))]
        self.add(replica, hashes, len(blocks) - matching, work_tokens)

    def add(
        self, replica: str, hashes: Sequence[int], inserted_blocks: int, work_tokens: int
    ) -> None:
        """Note a prompt of which only the told places are known."""
        told = self._told.get(replica)
        if told is None:
            told = self._told[replica] = Told([])
        told.inserted_blocks += inserted_blocks
        told.work_tokens += work_tokens
        if self._count + len(hashes) <= MOST_HASHES:
            self._count += len(hashes)
            told.hashes.extend(hashes)

    def take(self) -> dict[str, Told]:
        """Give what was placed, by replica, and begin anew; see `PoolState.tell`."""
        told, self._told, self._count = self._told, {}, 0
        return told


class Hearsay:
    """What others told of one replica: how much of its cache is theirs, how long their prompts.

    From agents that tell their load directly (`control.peers`), also the sum of what they have
    there now.
    """

    __slots__ = ("_at", "_loads", "_others", "_own", "_waiting", "told_requests", "told_tokens")

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, float, float]] = {}
        self._loads: dict[str, tuple[int, float, float]] = {}
        self.told_requests = 0  # of agents that tell directly
        self.told_tokens = 0.0  # of these, prompt tokens still to be computed
        self._own = 0.0
        self._others = 0.0
        self._at = 0.0

    def hear(self, agent: str, told: Told, now: float) -> None:
        """Take in what another agent told."""
        self.note_inserted(0, told.inserted_blocks, now)
        self._waiting[agent] = (told.waiting, told.waiting_tokens, now)

    def mean_waiting_tokens(self, now: float) -> float | None:
        """Give the mean of what is left of the others' waiting prompts; None: nothing was told."""
        count, tokens = 0, 0.0
        for waiting, left, at in self._waiting.values():
            if now - at <= TOLD_LIFE_S:
                count += waiting
                tokens += left
        return tokens / count if count else None

    def hear_load(self, agent: str, requests: int, waiting_tokens: float, now: float) -> None:
        """Take in what another agent has here at this moment, in place of what it told before."""
        if requests:
            self._loads[agent] = requests, waiting_tokens, now
        else:
            self._loads.pop(agent, None)
        self._sum_loads()

    def expire_loads(self, now: float) -> None:
        """Forget loads that were not told again for too long."""
        oldest = now - LOAD_LIFE_S
        stale = [agent for agent, (_, _, at) in self._loads.items() if at < oldest]
        for agent in stale:
            del self._loads[agent]
        if stale:
            self._sum_loads()

    def _sum_loads(self) -> None:
        requests, tokens = 0, 0.0
        for told_requests, told_tokens, _ in self._loads.values():
            requests += told_requests
            tokens += told_tokens
        self.told_requests, self.told_tokens = requests, tokens

    def note_inserted(self, own_blocks: int, others_blocks: int, now: float) -> None:
        """Count blocks that were inserted."""
        kept = exp(-max(now - self._at, 0.0) / SHARE_LIFE_S)
        self._own = self._own * kept + own_blocks
        self._others = self._others * kept + others_blocks
        self._at = now

    @property
    def is_alone(self) -> bool:
        """Whether nobody else was heard of."""
        return not self._others

    def share(self) -> float:
        """Give our share of the cache, 0 to 1; 1 while nobody else is heard of."""
        if not self._others:
            return 1.0
        return self._own / (self._own + self._others)
