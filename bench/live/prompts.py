"""Prompts for a trace: text of the right length that is shared where the trace says so.

Equal block ids become equal text, different ones differ from their first word on. So an engine's
prefix cache finds what the trace's did, whatever the size of its own blocks, but for the tokens of
the chat template in front.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from routing_agent.simulation.traces.model import TraceRequest

# Short words of everyday English: most vocabularies have each as one token, with its space.
_WORDS: Final = (
    "the", "time", "people", "water", "day", "word", "light", "house", "year", "line", "place",
    "work", "sound", "name", "air", "land", "home", "hand", "picture", "world", "story",
    "point", "earth", "food", "paper", "music", "river", "book", "letter", "science",
    "friend", "morning", "night", "table", "street", "garden", "winter", "summer", "answer",
    "question", "number", "color", "fish", "bird", "tree", "horse", "door", "road", "stone",
    "rain", "wind", "field", "train", "ship", "market", "bread", "salt", "metal", "glass",
)  # fmt: skip
_CACHED_BLOCKS: Final = 4096


@dataclass(frozen=True, slots=True)
class TextSize:
    """How many bytes of text make a token here, and the tokens that a chat template adds."""

    bytes_per_token: float
    template_tokens: int

    def text_bytes(self, tokens: int) -> int:
        """Give how long a text must be for a prompt of so many tokens; one byte at least."""
        return max(1, round((tokens - self.template_tokens) * self.bytes_per_token))


class PromptWriter:
    """Writes the prompts of one trace; a seed keeps those of different runs apart."""

    def __init__(self, size: TextSize, block_tokens: int | None, seed: str) -> None:
        self._size = size
        self._block_bytes = round((block_tokens or 0) * size.bytes_per_token)
        self._seed = seed

    def text(self, request: TraceRequest, number: int) -> str:
        """Give the prompt of a trace's request number `number`."""
        total = self._size.text_bytes(request.prompt_tokens)
        parts = [words(f"{self._seed}/{block}", self._block_bytes) for block in request.blocks]
        rest = total - len(parts) * self._block_bytes
        if rest > 0:
            parts.append(words(f"{self._seed}/only {number}", rest))
        return "".join(parts)[:total]


@lru_cache(maxsize=_CACHED_BLOCKS)
def words(seed: str, length: int) -> str:
    """Give a text of `length` ASCII characters: the same for the same seed, apart from others."""
    dice = random.Random(seed)
    mark = f"{dice.getrandbits(48):012x} "
    shortest = min(map(len, _WORDS)) + 1
    return (mark + " ".join(dice.choices(_WORDS, k=length // shortest + 1)))[:length]
