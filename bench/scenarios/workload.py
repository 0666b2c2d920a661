"""Conversations as a trace: growing prompts, shared system texts, rates that change with time."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from routing_agent.simulation.traces.model import TraceRequest, session_of

BLOCK_TOKENS: Final = 64
# Applications: how often each is met, and the tokens of its system text.
SYSTEMS: Final = ((0.3, 1024), (0.25, 2048), (0.2, 512), (0.15, 4096), (0.1, 1536))
WORDS_MEDIAN: Final = 300  # of a turn; lognormal
WORDS_SPREAD: Final = 0.9
WORDS_MOST: Final = 4000
ANSWER_TOKENS: Final = 250
TURNS: Final = 6.0  # mean
MOST_TURNS: Final = 16
PAUSE_S: Final = 12.0  # mean time from one turn to the next
LEAST_PAUSE_S: Final = 3.0

Rates = Sequence[tuple[float, float]]  # from a second on, so many a second


@dataclass(slots=True)
class Workload:
    """Makes requests; block ids are fresh wherever texts are."""

    seed: int = 0
    _chance: random.Random = field(init=False)
    _fresh: Iterator[int] = field(default_factory=lambda: count(1))
    _systems: list[tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        """Write the system texts."""
        self._chance = random.Random(self.seed)
        self._systems = [self.text(tokens) for _, tokens in SYSTEMS]

    def text(self, tokens: int) -> tuple[int, ...]:
        """Give a new text's blocks."""
        return tuple(next(self._fresh) for _ in range(max(tokens // BLOCK_TOKENS, 1)))

    def conversations(self, rates: Rates, end_s: float) -> list[TraceRequest]:
        """Give the turns of conversations that begin at these rates."""
        weights = [weight for weight, _ in SYSTEMS]
        found: list[TraceRequest] = []
        for number, at_s in enumerate(self._arrivals(rates, end_s)):
            system = self._chance.choices(self._systems, weights)[0]
            found += self._turns(number, at_s, system)
        return [request for request in found if request.at_s < end_s]

    def alike(self, prefix_tokens: int, own_tokens: int, rates: Rates, end_s: float,
              *, name: str) -> list[TraceRequest]:  # fmt: skip
        """Give single requests, each of a session of its own, that begin with one text."""
        prefix = self.text(prefix_tokens) if prefix_tokens else ()
        return [
            _request(at_s, prefix + self.text(own_tokens), name, number)
            for number, at_s in enumerate(self._arrivals(rates, end_s))
        ]

    def _turns(self, number: int, at_s: float, system: tuple[int, ...]) -> Iterator[TraceRequest]:
        chance, said = self._chance, system
        for _ in range(min(1 + int(chance.expovariate(1 / (TURNS - 0.5))), MOST_TURNS)):
            words = WORDS_MEDIAN * chance.lognormvariate(0.0, WORDS_SPREAD)
            said += self.text(min(round(words), WORDS_MOST))
            yield _request(at_s, said, "talk", number)
            said += self.text(ANSWER_TOKENS)
            at_s += LEAST_PAUSE_S + chance.expovariate(1 / (PAUSE_S - LEAST_PAUSE_S))

    def _arrivals(self, rates: Rates, end_s: float) -> Iterator[float]:
        ends = [at for at, _ in rates[1:]] + [end_s]
        for (begin_s, rate), until_s in zip(rates, ends, strict=True):
            at_s = begin_s
            while rate:
                at_s += self._chance.expovariate(rate)
                if at_s >= until_s:
                    break
                yield at_s


def _request(at_s: float, blocks: tuple[int, ...], name: str, number: int) -> TraceRequest:
    return TraceRequest(
        at_s=at_s,
        prompt_tokens=len(blocks) * BLOCK_TOKENS,
        output_tokens=ANSWER_TOKENS,
        session=session_of("named", name, number),
        blocks=blocks,
    )
