"""What a policy is given and what it gives back: the interface that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from routing_agent.core.chance import Chance
from routing_agent.core.prefix_index import PrefixIndex
from routing_agent.core.replica import Replica
from routing_agent.core.ring import Ring
from routing_agent.core.sessions import Sessions
from routing_agent.wire import PoolSettings

Route = Literal["affinity", "prefix", "load", "hash", "only", "fallback", "cascade", "retry"]


class RouteRequest:
    """All that a choice may know of a request."""

    __slots__ = (
        "adapter", "block_tokens", "blocks", "may_wait", "prompt_tokens", "session", "tokens",
        "tried",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - the parts of one thing
        self,
        tokens: int,
        session: int,
        *,
        adapter: str = "",
        tried: tuple[str, ...] = (),
        prompt_tokens: int = 0,
        blocks: Sequence[int] = (),
        block_tokens: float = 0.0,
    ) -> None:
        self.tokens = tokens  # what it will be charged with
        self.session = session  # 64-bit hash of tenant and session
        self.adapter = adapter  # what the replica must hold
        self.prompt_tokens = prompt_tokens  # estimated; 0: not known
        self.tried = tried  # replicas not to choose again
        # Hashes of the prompt's whole prefixes, one for each full block, the shortest first; the
        # chain's seed is apart for model version, adapter and salt. Empty: nothing is known.
        self.blocks = blocks
        self.block_tokens = block_tokens  # tokens that a block stands for
        self.may_wait = False  # for room, where its pool holds requests back

    def uncached_tokens(self, matching: int) -> float:
        """Give the prompt tokens to compute where `matching` of its blocks are cached.

        At least one: the first token of an answer is computed from the prompt's last.
        """
        left = self.prompt_tokens - matching * self.block_tokens
        return left if left > 1.0 else 1.0


class Candidates(Protocol):
    """The replicas of one pool and what its policies remember between choices."""

    settings: PoolSettings
    cursor: int
    sessions: Sessions
    index: PrefixIndex
    numbered: dict[int, Replica]
    spares: list[Replica]
    zone: str
    bind_ahead_s: float

    def agents(self, now: float) -> int:
        """Count the agents that send requests to this pool, this one included."""
        ...

    @property
    def replicas(self) -> Sequence[Replica]:
        """All replicas of the pool, whatever their state."""
        ...

    def ring(self) -> Ring:
        """Give the pool's hash ring."""
        ...

    def by_id(self, replica: str) -> Replica | None:
        """Give a replica of the pool."""
        ...


class Pick:
    """What a policy picked, and why."""

    __slots__ = ("reason", "replica", "route")

    def __init__(self, replica: Replica, route: Route, reason: str) -> None:
        self.replica = replica
        self.route = route
        self.reason = reason


class Policy(Protocol):
    """One way to pick among usable replicas (at least two). Pure but for the pool's cursor."""

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick one of `usable`."""
        ...

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """Give the figures this policy compares, the deciding one under "score" (least wins)."""
        ...
