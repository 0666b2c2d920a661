"""Scenarios under the virtual clock: the model of `routing_agent/simulation`, as replays use it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import Final

import xxhash

from bench.model.passed import Outcome, Passed
from bench.model.scenarios import Ask, Part, Scenario
from routing_agent.simulation.profiles import Profile
from routing_agent.simulation.scheduler import Scheduler
from routing_agent.simulation.sequences import Event, Request

_END: Final = float("inf")
_KEPT_PROMPTS: Final = 1024


class _Times:
    """When what happened to the requests, in the engine's seconds."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.queued: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.cached: dict[str, int] = {}


class ModelEngine:
    """One engine of a profile, with an empty cache at first.

    Before it stands a server that takes `outside_s` for each request, one after the other, as the
    one process of vLLM's API does.
    """

    def __init__(self, profile: Profile, outside_s: float) -> None:
        self.now = 0.0
        self._profile = profile
        self._outside_s = outside_s
        self._server_free_at = 0.0
        self._scheduler = Scheduler(profile)
        self._due: float | None = None
        self._times = _Times()

    def run(self, scenario: Scenario) -> Passed:
        """Go through a scenario."""
        for batch in scenario.batches[: scenario.judged]:
            self._batch(batch)
        ids = [one for batch in scenario.batches[scenario.judged :] for one in self._batch(batch)]
        times = self._times
        waits = [times.started[one] - times.queued[one] for one, _ in ids]
        return Passed(tuple(self._outcome(*one) for one in ids), fmean(waits))

    def _batch(self, asks: Sequence[Ask]) -> list[tuple[str, Ask]]:
        began = self.now
        ids = []
        for ask in asks:
            asked = began + ask.at_s
            self._server_free_at = max(asked, self._server_free_at) + self._outside_s
            self._advance(self._server_free_at)
            self.now = self._server_free_at
            ids.append((self._submit(ask, asked), ask))
        self._advance(_END)
        return ids

    def _submit(self, ask: Ask, asked: float) -> str:
        one = str(len(self._times.asked))
        request = Request(
            id=one,
            prompt_tokens=ask.prompt_tokens,
            output_tokens=ask.output_tokens,
            block_hashes=_block_hashes(ask.prompt, self._profile.block_tokens),
        )
        self._due = self._scheduler.submit(request, self.now)
        self._times.asked[one] = asked
        # vLLM's engine looks for new requests between steps, and only then does one begin to wait.
        self._times.queued[one] = self.now if self._due is None else self._due
        return one

    def _advance(self, until: float) -> None:
        while self._due is not None and self._due < until:
            self.now = self._due
            events, self._due = self._scheduler.step(self._due)
            for event in events:
                self._note(event)

    def _note(self, event: Event) -> None:
        times, one = self._times, event.request_id
        if event.kind == "started":
            times.started[one] = event.at
            times.cached[one] = self._scheduler.cached_tokens(one)
        elif event.kind == "token":
            times.first.setdefault(one, event.at)
        elif event.kind == "finished":
            times.ended[one] = event.at

    def _outcome(self, one: str, ask: Ask) -> Outcome:
        times = self._times
        first, more = times.first[one], ask.output_tokens - 1
        tpot_s = (times.ended[one] - first) / more if more else None
        return Outcome(first - times.asked[one], tpot_s, times.cached[one])


def simulate(profile: Profile, scenario: Scenario, outside_s: float = 0.0) -> Passed:
    """Go through a scenario on a fresh engine."""
    return ModelEngine(profile, outside_s).run(scenario)


def capacity(profile: Profile, scenario: Scenario) -> float:
    """Give the requests/s that an engine gets done when it never waits."""
    engine = ModelEngine(profile, 0.0)
    engine.run(scenario)
    return sum(map(len, scenario.batches)) / engine.now


@lru_cache(maxsize=_KEPT_PROMPTS)
def _block_hashes(prompt: tuple[Part, ...], block_tokens: int) -> tuple[int, ...]:
    ids, chain, hashes = Ask(0.0, prompt, 0).token_ids(), 0, []
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        chain = xxhash.xxh3_64_intdigest(repr(ids[start : start + block_tokens]).encode(), chain)
        hashes.append(chain)
    return tuple(hashes)
