"""THE ENGINE AS A MODEL: continuous batching with chunked prefill, KV blocks and a prefix cache.

Pure: the clock is passed in, nothing sleeps and nothing is sent. The same scheduler runs behind the
HTTP server (`engine.py`) and in event-to-event replays.

A step is planned when it begins and takes effect when it ends. Each running sequence has a number
of tokens without KV: the whole prompt at first, then the one token it made last. A step works on
as many of them as the budget allows, oldest sequence first; one that has caught up makes a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from routing_agent.simulation.blocks import BlockPool
from routing_agent.simulation.profiles import Profile

EventKind = Literal["started", "token", "finished", "preempted"]

# A step that ends late (a busy machine) is made up for, unless the process stood still this long:
# a frozen engine computes nothing.
FORGIVEN_LATENESS_S = 0.25


class Event(NamedTuple):
    """One thing that happened to one request, at the engine's time `at`."""

    kind: EventKind
    request_id: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the engine has to compute; `block_hashes` cover the prompt and the output to come."""

    id: str
    prompt_tokens: int
    output_tokens: int  # 0: only the prompt is computed (embeddings)
    block_hashes: Sequence[int] = ()


@dataclass(slots=True)
class _Sequence:
    request: Request
    computed: int = 0  # tokens that have KV
    generated: int = 0
    blocks: list[int | None] = field(default_factory=list)  # a hash, or None while private
    published: int = 0  # blocks offered to the prefix cache so far
    cached_tokens: int = 0
    started: bool = False

    @property
    def known_tokens(self) -> int:
        return self.request.prompt_tokens + self.generated

    @property
    def is_complete(self) -> bool:
        return self.generated >= self.request.output_tokens


@dataclass(slots=True)
class Counters:
    """Totals since the start, for the metrics page."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_cache_queries: int = 0  # in tokens
    prefix_cache_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    busy_s: float = 0.0  # steps that were begun; see `Scheduler.busy_s`


class Scheduler:
    """One engine: `submit` and `cancel` requests, `step` through time."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.slowdown = 1.0  # every step takes this many times as long
        self.pool = BlockPool(profile.kv_blocks)
        self.counters = Counters()
        self.last_step_tokens = 0
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._by_id: dict[str, _Sequence] = {}
        self._plan: list[tuple[_Sequence, int]] = []
        self._due: float | None = None

    @property
    def running(self) -> int:
        """How many sequences are in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many sequences wait for a place in the batch."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """What share of the KV blocks sequences hold, 0 to 1."""
        return self.pool.used / self.pool.capacity

    def busy_s(self, now: float) -> float:
        """Tell how long it has computed since it started."""
        to_come = max(0.0, self._due - now) if self._plan and self._due is not None else 0.0
        return self.counters.busy_s - to_come

    def cached_tokens(self, request_id: str) -> int:
        """Tell how many prompt tokens of a live request came from the prefix cache."""
        return self._by_id[request_id].cached_tokens

    def submit(self, request: Request, now: float) -> None:
        """Queue a request; it starts at the next step that has room. Refuses what can never fit."""
        if request.id in self._by_id:
            raise ValueError(f"request {request.id!r} is already here; ids must be unique")
        if request.prompt_tokens < 1 or request.output_tokens < 0:
            raise ValueError("a request has at least one prompt token and no negative output")
        total = request.prompt_tokens + request.output_tokens
        if total > self.profile.longest_request_tokens:
            limit = self.profile.longest_request_tokens
            raise ValueError(f"request of {total} tokens exceeds the engine's {limit}")
        sequence = _Sequence(request)
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)
        if self._due is None:
            self._due = now  # an empty step: the batch is formed at the next call of `step`

    def cancel(self, request_id: str, now: float) -> bool:
        """Drop a request at once, waiting or running; False if it is not here (any more)."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        self._free(sequence)
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
        self._plan = [(s, n) for s, n in self._plan if s is not sequence]
        return True

    def step(self, now: float) -> tuple[list[Event], float | None]:
        """End the step that is due and begin the next; give what happened and when to call again.

        Called early it does nothing. `None` means idle until the next `submit`.
        """
        if self._due is None or now < self._due:
            return [], self._due
        ended = self._due
        events: list[Event] = []
        self._finish_step(ended, events)
        start = ended if now - ended <= FORGIVEN_LATENESS_S else now
        self._begin_step(start, events)
        return events, self._due

    def _begin_step(self, start: float, events: list[Event]) -> None:
        budget = self._plan_running(start, events)
        self._admit(budget, start, events)
        if not self._plan:
            self._due = None
            return
        duration_s = self._duration_s() * self.slowdown
        self._due = start + duration_s
        self.counters.busy_s += duration_s

    def _plan_running(self, start: float, events: list[Event]) -> int:
        budget = self.profile.step_token_budget
        position = 0
        while position < len(self._running):
            sequence = self._running[position]
            tokens = min(sequence.known_tokens - sequence.computed, budget)
            if not tokens:
                break
            if not self._grow(sequence, sequence.computed + tokens, start, events):
                continue  # the newest one made room: look at this position again
            self._plan.append((sequence, tokens))
            budget -= tokens
            position += 1
        return budget

    def _grow(self, sequence: _Sequence, tokens: int, at: float, events: list[Event]) -> bool:
        missing = self._blocks_for(tokens) - len(sequence.blocks)
        if missing <= 0:
            return True
        if not self.pool.has_room(private=missing, shared=()):
            self._preempt_newest(at, events)
            return False
        self.pool.allocate(missing)
        sequence.blocks.extend([None] * missing)
        return True

    def _preempt_newest(self, at: float, events: list[Event]) -> None:
        sequence = self._running.pop()
        self._free(sequence)
        sequence.computed = sequence.published = 0
        self._waiting.appendleft(sequence)
        self.counters.preemptions += 1
        events.append(Event("preempted", sequence.request.id, at))

    def _admit(self, budget: int, start: float, events: list[Event]) -> None:
        while budget and self._waiting and len(self._running) < self.profile.max_running_sequences:
            sequence = self._waiting[0]
            if not self._claim(sequence):
                return  # first come, first served: nothing overtakes it
            self._waiting.popleft()
            self._running.append(sequence)
            if not sequence.started:
                self._note_start(sequence, start, events)
            tokens = min(sequence.known_tokens - sequence.computed, budget)
            self._plan.append((sequence, tokens))
            budget -= tokens

    def _claim(self, sequence: _Sequence) -> bool:
        """Hold every block the known tokens need, shared ones first; False leaves nothing held."""
        shared = self._cached_prefix(sequence)
        needed = self._blocks_for(sequence.known_tokens) - len(shared)
        if not self.pool.has_room(private=needed, shared=shared):
            return False
        for block in shared:
            self.pool.hold(block)
        self.pool.allocate(needed)
        sequence.blocks = [*shared, *[None] * needed]
        sequence.published = len(shared)
        sequence.computed = len(shared) * self.profile.block_tokens
        return True

    def _cached_prefix(self, sequence: _Sequence) -> Sequence[int]:
        if not self.profile.prefix_cache:
            return ()
        # The last token is always computed: its output is what makes the next one.
        most = (sequence.known_tokens - 1) // self.profile.block_tokens
        hashes = sequence.request.block_hashes[:most]
        return hashes[: self.pool.matching(hashes)]

    def _note_start(self, sequence: _Sequence, at: float, events: list[Event]) -> None:
        sequence.started = True
        sequence.cached_tokens = sequence.computed
        self.counters.prompt_tokens += sequence.request.prompt_tokens
        if self.profile.prefix_cache:
            self.counters.prefix_cache_queries += sequence.request.prompt_tokens
            self.counters.prefix_cache_hits += sequence.cached_tokens
        events.append(Event("started", sequence.request.id, at))

    def _finish_step(self, at: float, events: list[Event]) -> None:
        plan, self._plan = self._plan, []
        self.last_step_tokens = sum(tokens for _, tokens in plan)
        self.counters.steps += bool(plan)
        for sequence, tokens in plan:
            sequence.computed += tokens
            self._publish(sequence)
            if sequence.computed < sequence.known_tokens:
                continue
            if not sequence.is_complete:
                sequence.generated += 1
                self.counters.generation_tokens += 1
                events.append(Event("token", sequence.request.id, at))
            if sequence.is_complete:
                self._end(sequence, at, events)

    def _publish(self, sequence: _Sequence) -> None:
        if not self.profile.prefix_cache:
            return
        hashes = sequence.request.block_hashes
        full = min(sequence.computed // self.profile.block_tokens, len(hashes))
        for i in range(sequence.published, full):
            if self.pool.publish(hashes[i]):
                sequence.blocks[i] = hashes[i]
        sequence.published = max(sequence.published, full)

    def _end(self, sequence: _Sequence, at: float, events: list[Event]) -> None:
        self._running.remove(sequence)
        self._free(sequence)
        del self._by_id[sequence.request.id]
        events.append(Event("finished", sequence.request.id, at))

    def _free(self, sequence: _Sequence) -> None:
        for block in reversed(sequence.blocks):  # a prefix's tail is evicted before its head
            self.pool.release(block)
        sequence.blocks = []

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.profile.block_tokens)

    def _duration_s(self) -> float:
        decoding = sum(1 for s, tokens in self._plan if s.generated and tokens == 1)
        prefill = sum(tokens for _, tokens in self._plan) - decoding
        slower_half = max(self.profile.decode_step_s, prefill / self.profile.prefill_tokens_per_s)
        return slower_half + decoding * self.profile.decode_step_per_sequence_s
