"""What a live engine and its model are both asked: the same prompts at the same times."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

Kind = Literal["prefill", "decode", "prefix", "load"]

# Ids that every vocabulary has: in byte-level ones they are single bytes, so that lengths are exact
# and texts decode.
_FIRST_ID: Final = 20
_LAST_ID: Final = 219
_KEPT_PARTS: Final = 1024

DECODE_PROMPT_TOKENS: Final = 16
PREFIX_OUTPUT_TOKENS: Final = 2
_TIMES: Final = 3  # that a single prompt is asked in one pass
# The load: half of the prompts begin with one of four shared texts; lengths are spread evenly on a
# scale of powers, as those of real traffic roughly are.
_SHARED_TEXTS: Final = 4
_OWN_TOKENS: Final = (16, 512)
_OUTPUT_TOKENS: Final = (8, 64)


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a prompt: equal seeds are equal tokens."""

    seed: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, `at_s` seconds after its batch began."""

    at_s: float
    prompt: tuple[Part, ...]
    output_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return sum(part.tokens for part in self.prompt)

    def token_ids(self) -> list[int]:
        """Give the prompt."""
        return [one for part in self.prompt for one in _ids(part)]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Batches one after the other: each begins when all of the one before is answered."""

    kind: Kind
    name: str
    batches: tuple[tuple[Ask, ...], ...]
    judged: int = 0  # the first batch that counts


@lru_cache(maxsize=_KEPT_PARTS)
def _ids(part: Part) -> tuple[int, ...]:
    return tuple(random.Random(part.seed).choices(range(_FIRST_ID, _LAST_ID + 1), k=part.tokens))


def prefill(tokens: int, salt: str) -> Scenario:
    """Ask new prompts on an idle engine, one after the other."""
    batches = tuple((_own(0.0, f"{salt}/p{tokens}/{n}", tokens, 1),) for n in range(_TIMES))
    return Scenario("prefill", f"prompt of {tokens:,}", batches)


def decode(sequences: int, tokens: int, salt: str) -> Scenario:
    """Ask for long answers side by side."""
    asks = (
        _own(0.0, f"{salt}/d{sequences}/{n}", DECODE_PROMPT_TOKENS, tokens)
        for n in range(sequences)
    )
    return Scenario("decode", f"{sequences} side by side", (tuple(asks),))


def prefix(tokens: int, salt: str) -> Scenario:
    """Ask prompts that were asked before, one after the other; only the second time counts."""
    batches = tuple(
        (_own(0.0, f"{salt}/h{tokens}/{n}", tokens, PREFIX_OUTPUT_TOKENS),) for n in range(_TIMES)
    )
    return Scenario("prefix", f"prompt of {tokens:,} again", batches * 2, judged=_TIMES)


def load(rate: float, count: int, longest: int, salt: str) -> Scenario:
    """Ask by chance at `rate` requests/s (a Poisson process), mixed lengths, shared prefixes.

    Times and lengths are the same for every salt: only the tokens are others.
    """
    dice = random.Random(f"load {rate}")
    at_s, asks = 0.0, []
    for number in range(count):
        asks.append(_mixed(dice, at_s, number, longest, f"{salt}/l{rate}"))
        at_s += dice.expovariate(rate)
    return Scenario("load", f"load of {rate:.1f}/s", (tuple(asks),))


def saturation(count: int, longest: int) -> Scenario:
    """Ask all of a load at once: what an engine makes of it is its capacity."""
    dice = random.Random("saturation")
    asks = (_mixed(dice, 0.0, number, longest, "saturation") for number in range(count))
    return Scenario("load", "saturation", (tuple(asks),))


def _mixed(dice: random.Random, at_s: float, number: int, longest: int, salt: str) -> Ask:
    shared = min(512, longest // 2)
    text, own = dice.randrange(_SHARED_TEXTS), _spread(dice, *_OWN_TOKENS)
    own = min(own, longest // 2 - _OUTPUT_TOKENS[1])
    parts = [Part(f"{salt}/shared {text}", shared)] if dice.random() < 0.5 else []
    parts.append(Part(f"{salt}/{number}", own))
    return Ask(at_s, tuple(parts), _spread(dice, *_OUTPUT_TOKENS))


def _spread(dice: random.Random, low: int, high: int) -> int:
    return round(low * (high / low) ** dice.random())


def _own(at_s: float, seed: str, tokens: int, output: int) -> Ask:
    return Ask(at_s, (Part(seed, tokens),), output)


def lengths(longest: int) -> Sequence[int]:
    """Give the prompt lengths to measure: doubling up to what the context holds."""
    return tuple(_doubling(32, longest))


def _doubling(first: int, limit: int) -> Iterator[int]:
    tokens = first
    while tokens < limit:
        yield tokens
        tokens *= 2
    yield limit
