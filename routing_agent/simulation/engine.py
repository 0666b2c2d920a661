"""The scheduler on a live clock: steps are timers, events go to whoever waits for the words."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec.structs import replace

from routing_agent.simulation.faults import Faults, Shares
from routing_agent.simulation.loading import wake_s
from routing_agent.simulation.profiles import Profile
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.scheduler import Event, Request, Scheduler
from routing_agent.simulation.telemetry import Telemetry


class Listener(Protocol):
    """Who is told of a job's progress."""

    def token(self, job: Job) -> None:
        """One more token is there: number `job.generated`."""

    def finished(self, job: Job) -> None:
        """All is computed."""


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A request inside the engine, with what is known of it so far."""

    request: Request
    listener: Listener
    finish_reason: Literal["stop", "length"]
    max_tokens: int
    arrived_at: float
    choice: int = 0  # which of the answers to one request this is
    started_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    generated: int = 0
    cached_tokens: int = 0


class Engine:
    """One simulated engine: takes work, computes it in its own time, can be made to fail."""

    def __init__(self, profile: Profile, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.limits = limits
        self.scheduler = Scheduler(profile)
        self.telemetry = Telemetry(limits.model, self.scheduler)
        self.shares = Shares()
        self._faults = Faults()
        self._loop = loop
        self._jobs: dict[str, Job] = {}
        self._parked: dict[str, Job] = {}  # accepted while asleep: neither running nor waiting
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)
        self._sleep_level: Literal[1, 2] = 1

    @property
    def faults(self) -> Faults:
        """The fault switches as they stand."""
        return self._faults

    def switch(self, faults: Faults) -> None:
        """Set the fault switches; waking up starts what was parked."""
        self._faults = faults
        self.scheduler.slowdown = faults.slow
        if not faults.asleep:
            if self.scheduler.is_asleep:  # put to sleep by call, woken by switch: at once
                self._arm(self.scheduler.load(self.now(), 0.0))
            parked, self._parked = self._parked, {}
            for job in parked.values():
                self._submit(job)

    def sleep(self, level: Literal[1, 2]) -> None:
        """Give up the GPU's memory; who was running starts over once it is awake."""
        self._sleep_level = level
        self.scheduler.sleep(self.now())
        self.switch(replace(self._faults, asleep=True))

    def wake(self) -> None:
        """Load the weights again, which takes its time, and go on; one awake stays as it is."""
        if not self._faults.asleep:
            return
        if self.scheduler.is_asleep:
            profile = self.scheduler.profile
            takes_s = wake_s(profile.weights_bytes, self._sleep_level) / profile.speed
            self._arm(self.scheduler.load(self.now(), takes_s))
        self.switch(replace(self._faults, asleep=False))

    @property
    def jobs(self) -> int:
        """How many requests are inside, parked ones too."""
        return len(self._jobs) + len(self._parked)

    def next_id(self) -> str:
        """Give an id that no other request of this engine has."""
        return str(next(self._numbers))

    def now(self) -> float:
        """Give the engine's time, in seconds."""
        return self._loop.time()

    def start(self, job: Job) -> None:
        """Take a job in; its listener hears of it from the next step on."""
        if self._faults.asleep:
            self._parked[job.request.id] = job
        else:
            self._submit(job)

    def abandon(self, job: Job) -> None:
        """Free what a job holds at once: its client has left."""
        if self._parked.pop(job.request.id, None) is None:
            self._jobs.pop(job.request.id, None)
            self.scheduler.cancel(job.request.id, self.now())

    def _submit(self, job: Job) -> None:
        self._jobs[job.request.id] = job
        self.scheduler.submit(job.request, self.now())
        if self._timer is None:
            self._step()

    def _step(self) -> None:
        self._timer = None
        steps = self.scheduler.counters.steps
        events, due = self.scheduler.step(self.now())
        if self.scheduler.counters.steps != steps:
            self.telemetry.step_tokens.observe(self.scheduler.last_step_tokens)
        self._arm(due)  # before the events: a listener may start further work
        for event in events:
            job = self._jobs.get(event.request_id)
            if job is not None:  # a listener may have abandoned it meanwhile
                self._tell(job, event)

    def _arm(self, due: float | None) -> None:
        if due is not None and self._timer is None:
            self._timer = self._loop.call_later(_whole_ms(due - self.now()), self._step)

    def _tell(self, job: Job, event: Event) -> None:
        if event.kind == "token":
            self.telemetry.note_token(job, event.at)
            job.generated += 1
            job.last_token_at = event.at
            if job.first_token_at is None:
                job.first_token_at = event.at
            job.listener.token(job)
        elif event.kind == "started":
            job.started_at = event.at
            job.cached_tokens = self.scheduler.cached_tokens(event.request_id)
        elif event.kind == "finished":
            del self._jobs[event.request_id]
            self.telemetry.note_finish(job, event.at)
            job.listener.finished(job)


def _whole_ms(delay_s: float) -> float:
    """Round up: uvloop's timers count milliseconds and would fire early, then again and again."""
    return max(0, math.ceil(delay_s * 1000)) / 1000
