"""What an engine computes: requests, the sequences they become inside, and what happens to them."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

EventKind = Literal["started", "token", "finished", "preempted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine has to compute; `block_hashes` cover the prompt and the output to come.

    A hash stands for a full block of the profile's `block_tokens` and all that came before it.
    Where only the prompt is known (traces), hashes end with the prompt.
    """

    id: str
    prompt_tokens: int
    output_tokens: int  # 0: only the prompt is computed (embeddings)
    block_hashes: Ordered[int] = ()
    adapter: str = ""  # the LoRA adapter it needs; "" is the base model


class Event(NamedTuple):
    """One thing that happened to one request, at the engine's time `at`."""

    kind: EventKind
    request_id: str
    at: float


class Prefill(NamedTuple):
    """Prompt tokens that an engine has yet to compute: a straight line until something happens."""

    left: int  # at `since`
    per_s: float
    since: float

    def at(self, now: float) -> float:
        """Give what is left at a moment."""
        return max(0.0, self.left - self.per_s * (now - self.since))


@dataclass(slots=True)
class Counters:
    """Totals since the start, for the metrics page."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # in tokens
    prefix_cache_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    busy_s: float = 0.0  # of steps that ended; see `Scheduler.busy_s`


@dataclass(slots=True, eq=False)
class Sequence:
    """A request at work. Its blocks: `shared` ones by hash, and a number of private ones."""

    request: Request
    computed: int = 0  # tokens that have KV
    generated: int = 0
    shared: list[int] = field(default_factory=list)
    private: int = 0
    published: int = 0  # blocks offered to the prefix cache so far
    cached_tokens: int = 0
    started: bool = False

    @property
    def known_tokens(self) -> int:
        """Prompt tokens and those it made."""
        return self.request.prompt_tokens + self.generated

    @property
    def left(self) -> int:
        """Tokens without KV: the whole prompt at first, then the one token it made last."""
        return self.request.prompt_tokens + self.generated - self.computed

    @property
    def blocks(self) -> int:
        """How many KV blocks it holds."""
        return len(self.shared) + self.private

    @property
    def is_complete(self) -> bool:
        """Whether all its tokens are made."""
        return self.generated >= self.request.output_tokens

    def equal_steps(self, tokens: int) -> int:
        """Tell for how many steps in a row it can take `tokens` each before anything changes.

        A prompt that needs several steps: until its last full step. One that decodes: until its
        last token. One that catches up otherwise: a single step.
        """
        left = self.left
        if tokens < left:
            return left // tokens
        is_decoding = left == 1 and self.generated
        return self.request.output_tokens - self.generated if is_decoding else 1

    def reset(self) -> None:
        """Forget what was computed: it starts over, with the tokens it made as part of it."""
        self.computed = self.published = self.private = 0
        self.shared = []


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Tell how many blocks hold `tokens`."""
    return -(-tokens // block_tokens)
