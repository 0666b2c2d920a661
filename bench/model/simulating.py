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
from routing_agent.simulation.sequences import Event, Request
from routing_agent.simulation.virtual import VirtualEngines

_END: Final = float("inf")
_KEPT_PROMPTS: Final = 1024


class _Times:
    """When what happened to the requests of a batch."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.cached: dict[str, int] = {}


class ModelEngine:
    """One engine of a profile, with an empty cache at first."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._times = _Times()
        self._engines = VirtualEngines(profile, 1, self._note)
        self._number = 0

    @property
    def now(self) -> float:
        """Seconds that have passed for it."""
        return self._engines.now

    def run(self, scenario: Scenario) -> Passed:
        """Go through a scenario."""
        for batch in scenario.batches[: scenario.judged]:
            self._batch(batch)
        ids = [one for batch in scenario.batches[scenario.judged :] for one in self._batch(batch)]
        times = self._times
        waits = [times.started[one] - times.asked[one] for one, _ in ids]
        return Passed(tuple(self._outcome(*one) for one in ids), fmean(waits))

    def _batch(self, asks: Sequence[Ask]) -> list[tuple[str, Ask]]:
        began = self._engines.now
        ids = []
        for ask in asks:
            self._engines.advance(began + ask.at_s)
            request = self._request(ask)
            self._times.asked[request.id] = began + ask.at_s
            ids.append((request.id, ask))
            self._engines.submit(0, request)
        self._engines.advance(_END)
        return ids

    def _request(self, ask: Ask) -> Request:
        self._number += 1
        return Request(
            id=str(self._number),
            prompt_tokens=ask.prompt_tokens,
            output_tokens=ask.output_tokens,
            block_hashes=_block_hashes(ask.prompt, self._profile.block_tokens),
        )

    def _note(self, engine: int, event: Event) -> None:
        times, one = self._times, event.request_id
        if event.kind == "started":
            times.started[one] = event.at
            times.cached[one] = self._engines.schedulers[engine].cached_tokens(one)
        elif event.kind == "token":
            times.first.setdefault(one, event.at)
        elif event.kind == "finished":
            times.ended[one] = event.at

    def _outcome(self, one: str, ask: Ask) -> Outcome:
        times = self._times
        first, more = times.first[one], ask.output_tokens - 1
        tpot_s = (times.ended[one] - first) / more if more else None
        return Outcome(first - times.asked[one], tpot_s, times.cached[one])


def simulate(profile: Profile, scenario: Scenario) -> Passed:
    """Go through a scenario on a fresh engine."""
    return ModelEngine(profile).run(scenario)


def capacity(profile: Profile, scenario: Scenario) -> float:
    """Give the requests/s that an engine gets done when it never waits."""
    engine = ModelEngine(profile)
    engine.run(scenario)
    return sum(map(len, scenario.batches)) / engine.now


@lru_cache(maxsize=_KEPT_PROMPTS)
def _block_hashes(prompt: tuple[Part, ...], block_tokens: int) -> tuple[int, ...]:
    ids, chain, hashes = Ask(0.0, prompt, 0).token_ids(), 0, []
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        chain = xxhash.xxh3_64_intdigest(repr(ids[start : start + block_tokens]).encode(), chain)
        hashes.append(chain)
    return tuple(hashes)
