"""THE ENGINE AS A MODEL: continuous batching with chunked prefill, KV blocks and a prefix cache.

Pure: the clock is passed in, nothing sleeps and nothing is sent. The same scheduler runs behind the
HTTP server (`engine.py`) and in event-to-event replays (`virtual.py`).

A step is planned when it begins and takes effect when it ends. Each running sequence has a number
of tokens without KV: the whole prompt at first, then the one token it made last. A step works on
as many of them as the budget allows, oldest sequence first; one that has caught up makes a token.

Most steps are like the one before. A *run* is a number of equal steps: its end is worked out in
closed form (`runs.py`), so that a replay goes from event to event. With `every_token` a run
has one step, and each token is told. What happens at which time is the same either way.
"""

from __future__ import annotations

from collections import deque

from routing_agent.simulation import runs
from routing_agent.simulation.adapters import AdapterSlots
from routing_agent.simulation.memory import Memory
from routing_agent.simulation.profiles import Profile
from routing_agent.simulation.sequences import Counters, Event, Prefill, Request, Sequence

# A step that ends late (a busy machine) is made up for, unless the process stood still this long:
# a frozen engine computes nothing.
FORGIVEN_LATENESS_S = 0.25
_ROUNDING = 1e-9  # of a step: a moment this close to a step's end is its end


class Scheduler:
    """One engine: `submit` and `cancel` requests, `step` through time."""

    def __init__(self, profile: Profile, *, every_token: bool = True) -> None:
        self.profile = profile
        self.slowdown = 1.0  # every step takes this many times as long
        self.memory = Memory(profile)
        self.pool = self.memory.pool
        self.adapters = AdapterSlots(
            profile.adapter_slots,
            profile.adapter_host_slots,
            copy_s=profile.adapter_copy_s,
            read_s=profile.adapter_read_s,
        )
        self.counters = Counters()
        self.last_step_tokens = 0
        self._every_token = every_token
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}
        self._plan: list[tuple[Sequence, int]] = []
        self._began = 0.0  # of the run's first step whose effect is still to come
        self._step_s = 0.0
        self._steps = 0
        self._due: float | None = None
        self._may_join = True  # whether one that comes now could be in the next step
        self._deferred = 0
        self._blocked: Sequence | None = None  # the one in front, if there is no room for it
        self._asleep = False
        self._available_at = float("-inf")  # weights are being loaded until then

    @property
    def running(self) -> int:
        """How many sequences are in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many sequences wait for a place in the batch."""
        return len(self._waiting)

    @property
    def deferred(self) -> int:
        """How many of the waiting were passed over at the last step: no slot for their adapter."""
        return min(self._deferred, len(self._waiting))

    @property
    def is_asleep(self) -> bool:
        """Whether it sleeps."""
        return self._asleep

    @property
    def kv_usage(self) -> float:
        """What share of the KV blocks sequences hold, 0 to 1."""
        return self.pool.used / self.pool.capacity

    def busy_s(self, now: float) -> float:
        """Tell how long it has computed since it started."""
        return self.counters.busy_s + min(max(0.0, now - self._began), self._steps * self._step_s)

    def cached_tokens(self, request_id: str) -> int:
        """Tell how many prompt tokens of a live request came from the prefix cache."""
        return self._by_id[request_id].cached_tokens

    def prefill(self) -> Prefill:
        """Tell how many prompt tokens the batch has left, until the next thing happens."""
        prefilling = {id(s): s.left for s in self._running if s.left > 1 or not s.generated}
        planned = sum(tokens for s, tokens in self._plan if id(s) in prefilling)
        per_s = planned / self._step_s if self._step_s else 0.0
        return Prefill(sum(prefilling.values()), per_s, self._began)

    def submit(self, request: Request, now: float) -> float | None:
        """Queue a request; it starts at the next step that has room. Refuses what can never fit.

        Gives when to call `step` next.
        """
        if request.id in self._by_id:
            raise ValueError(f"request {request.id!r} is already here; ids must be unique")
        if request.prompt_tokens < 1 or request.output_tokens < 0:
            raise ValueError("a request has at least one prompt token and no negative output")
        total = request.prompt_tokens + request.output_tokens
        if total > self.profile.longest_request_tokens:
            limit = self.profile.longest_request_tokens
            raise ValueError(f"request of {total} tokens exceeds the engine's {limit}")
        sequence = Sequence(request)
        self._by_id[request.id] = sequence
        self._waiting.append(sequence)
        if self._may_join:
            self._cut_short(now)
        if self._due is None and not self._asleep:
            self._rest(max(now, self._available_at))
        return self._due

    def cancel(self, request_id: str, now: float) -> bool:
        """Drop a request at once, waiting or running; False if it is not here (any more)."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        self._cut_short(now)
        if sequence in self._running:
            self._running.remove(sequence)
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)
        self._plan = [(s, n) for s, n in self._plan if s is not sequence]
        return True

    def step(self, now: float) -> tuple[list[Event], float | None]:
        """End the run that is due and begin the next; give what happened and when to call again.

        Called early it does nothing. `None` means idle until the next `submit`.
        """
        if self._due is None or now < self._due:
            return [], self._due
        ended = self._due
        events: list[Event] = []
        self._finish_run(ended, events)
        start = ended if now - ended <= FORGIVEN_LATENESS_S else now
        self._begin_run(start, events)
        return events, self._due

    def settle(self, now: float) -> None:
        """Take note of the steps that ended by `now` inside a run, for whoever looks."""
        ended = self._steps_ended(now)
        if ended:
            self._commit(ended)
            for sequence, tokens in self._plan:  # the step under way holds its blocks already
                self.memory.grow(sequence, sequence.computed + tokens)

    def sleep(self, now: float) -> None:
        """Give up the GPU's memory: the cache is lost, and who was running starts over later."""
        self._cut_short(now)
        for sequence in reversed(self._running):
            self._put_back(sequence)
        self._running.clear()
        self._plan = []
        self.pool.forget()
        self.adapters.clear_gpu()
        self._asleep, self._due, self._steps = True, None, 0

    def load(self, now: float, takes_s: float) -> float | None:
        """Load the weights, at the start or after sleep; give when to call `step` next."""
        self._asleep = False
        self._available_at = now + takes_s
        if self._waiting:
            self._rest(self._available_at)
        return self._due

    # -- beginning a run ------------------------------------------------------------------------

    def _rest(self, until: float) -> None:
        """An empty run: the batch is formed at the next call of `step`."""
        self._plan, self._began, self._step_s, self._steps = [], until, 0.0, 0
        self._due = until

    def _begin_run(self, start: float, events: list[Event]) -> None:
        budget = self._plan_running(start, events)
        loading_s = self._admit(budget, start, events)
        self._began, self._steps = start, 0
        if not self._plan:
            self._due, self._may_join = None, True
            return
        self._step_s = self._duration_s() * self.slowdown + loading_s
        self._steps = 1 if self._every_token or loading_s else self._equal_steps()
        self._due = start + self._steps * self._step_s

    def _plan_running(self, start: float, events: list[Event]) -> int:
        budget = self.profile.step_token_budget
        position = 0
        while position < len(self._running):
            sequence = self._running[position]
            tokens = min(sequence.left, budget)
            if not tokens:
                break
            if not self.memory.grow(sequence, sequence.computed + tokens):
                self._preempt_newest(start, events)
                continue  # look at this position again, if there still is one
            self._plan.append((sequence, tokens))
            budget -= tokens
            position += 1
        return budget

    def _preempt_newest(self, at: float, events: list[Event]) -> None:
        sequence = self._running.pop()
        self._put_back(sequence)
        self.counters.preemptions += 1
        events.append(Event("preempted", sequence.request.id, at))

    def _put_back(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.reset()
        self._waiting.appendleft(sequence)

    def _admit(self, budget: int, start: float, events: list[Event]) -> float:
        """Let the waiting in, first come first served; give the seconds of loading adapters."""
        loading_s = 0.0
        passed: list[Sequence] = []  # only these are overtaken
        self._may_join, self._blocked = False, None
        while budget and len(self._running) < self.profile.max_running_sequences:
            if not self._waiting:
                self._may_join = True
                break
            sequence = self._waiting[0]
            if not self.adapters.has_room(sequence.request.adapter):
                passed.append(self._waiting.popleft())
                continue
            if not self.memory.claim(sequence):
                self._blocked = sequence
                break
            self._waiting.popleft()
            loading_s += self.adapters.take(sequence.request.adapter)
            budget -= self._join(sequence, budget, start, events)
        self._deferred = len(passed)
        self._waiting.extendleft(reversed(passed))
        return loading_s

    def _join(self, sequence: Sequence, budget: int, start: float, events: list[Event]) -> int:
        self._running.append(sequence)
        if not sequence.started:
            self._note_start(sequence, start, events)
        tokens = min(sequence.left, budget)
        self._plan.append((sequence, tokens))
        return tokens

    def _note_start(self, sequence: Sequence, at: float, events: list[Event]) -> None:
        sequence.started = True
        sequence.cached_tokens = sequence.computed
        self.counters.prompt_tokens += sequence.request.prompt_tokens
        if self.profile.prefix_cache:
            self.counters.prefix_cache_queries += sequence.request.prompt_tokens
            self.counters.prefix_cache_hits += sequence.cached_tokens
        events.append(Event("started", sequence.request.id, at))

    def _duration_s(self) -> float:
        decoding = sum(1 for s, tokens in self._plan if s.generated and tokens == 1)
        prefill = sum(tokens for _, tokens in self._plan) - decoding
        slower_half = max(self.profile.decode_step_s, prefill / self.profile.prefill_tokens_per_s)
        sequences_s = decoding * self.profile.decode_step_per_sequence_s
        return slower_half + sequences_s + self.profile.step_overhead_s

    def _equal_steps(self) -> int:
        steps = runs.equal_steps(self._plan)
        size = self.profile.block_tokens
        if steps > 1 and self._blocked is not None and self.profile.prefix_cache:
            place = self.memory.matching(self._blocked)
            steps = min(steps, runs.steps_until_help(self._plan, self._blocked, place, size))
        if steps > 1:
            steps = runs.steps_with_room(self._plan, steps, self.memory.room, size)
        return steps

    # -- ending steps ---------------------------------------------------------------------------

    def _steps_ended(self, now: float) -> int:
        """Count the steps of the run before its last that ended by `now`."""
        if self._steps < 2:
            return 0
        return min(int((now - self._began) / self._step_s + _ROUNDING), self._steps - 1)

    def _cut_short(self, now: float) -> None:
        """End the run with the step under way at `now`, so that something new can happen."""
        self.settle(now)
        if self._steps > 1:
            self._steps = 1
            self._due = self._began + self._step_s

    def _finish_run(self, at: float, events: list[Event]) -> None:
        self.last_step_tokens = sum(tokens for _, tokens in self._plan)
        caught_up = self._commit(self._steps)
        self._plan = []
        for sequence in caught_up:
            if sequence.generated and (self._every_token or sequence.generated == 1):
                events.append(Event("token", sequence.request.id, at))
            if sequence.is_complete:
                self._end(sequence, at, events)

    def _commit(self, steps: int) -> list[Sequence]:
        """Let the run's next `steps` steps take effect; give the sequences that caught up."""
        if self._plan:
            self.counters.steps += steps
        self.counters.busy_s += steps * self._step_s
        self._began += steps * self._step_s
        self._steps -= steps
        return [s for s, tokens in self._plan if self._compute(s, tokens, steps)]

    def _compute(self, sequence: Sequence, tokens: int, steps: int) -> bool:
        left = sequence.left
        sequence.computed += tokens * steps
        self.memory.grow(sequence, sequence.computed)  # inside a run; its room was seen to
        self.memory.publish(sequence)
        if tokens * steps < left:
            return False
        if not sequence.is_complete:
            made = steps if left == 1 else 1  # `left` stays 1 while it decodes
            sequence.generated += made
            self.counters.generation_tokens += made
        return True

    def _end(self, sequence: Sequence, at: float, events: list[Event]) -> None:
        self._running.remove(sequence)
        self._leave(sequence)
        del self._by_id[sequence.request.id]
        events.append(Event("finished", sequence.request.id, at))

    def _leave(self, sequence: Sequence) -> None:
        self.adapters.give_back(sequence.request.adapter)
        self.memory.free(sequence)
