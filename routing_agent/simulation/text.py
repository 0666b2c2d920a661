"""The words a simulated engine says: readable, and the same whenever the same prompt is asked."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

_OPENERS = (
    "Let us start with what we know.", "Good question.", "The main point is simple.", "Gladly.",
    "There are two ways to look at this.", "Here is how I would put it.",
    "Yes, with one condition.", "The details matter here.", "Step by step, then.",
    "The answer depends on one thing.",
)  # fmt: skip
_LINKS = (
    "", "", "", "", "However,", "For example,", "As a result,", "In practice,",
    "Most of the time,", "On the other hand,", "Because of this,", "Later on,",
    "In the same way,", "After a while,",
)  # fmt: skip
_SUBJECTS = (
    "the harbour master", "a small team", "the night train", "every reader", "the old library",
    "a careful plan", "the river valley", "the second report", "a quiet workshop",
    "the whole village", "the new schedule", "an honest estimate", "the first customer",
    "the measuring station", "a long letter", "the spring market", "our neighbour",
    "the repair crew", "the garden behind the mill", "a well kept record",
)  # fmt: skip
_VERBS = (
    "explains", "changes", "follows", "supports", "describes", "carries", "improves", "needs",
    "protects", "reaches", "remembers", "opens", "balances", "prepares", "collects", "answers",
)  # fmt: skip
_OBJECTS = (
    "the order of the steps", "a clear question", "the weight of the evidence",
    "two better choices", "the path along the coast", "a short list of reasons",
    "the cost of waiting", "fresh bread and tea", "the signals between stations", "a simple rule",
    "the shape of the problem", "enough time to think", "the numbers in the last column",
    "a bridge over the canal", "the habits of a good teacher", "what was promised in autumn",
    "the light in the morning", "an open window",
)  # fmt: skip
_TAILS = (
    "", "", "", "before the evening", "without much noise", "at a steady pace",
    "once the rain has stopped", "for those who ask", "as long as nobody hurries",
    "with a little patience", "from one year to the next", "in plain words", "and writes it down",
    "more often than people expect",
)  # fmt: skip
_LABELS = ("positive", "negative", "neutral", "billing", "delivery", "refund", "question", "praise")

SHORTEST_ANSWER_TOKENS = 12
LABEL_TOKENS = 4  # who allows no more wants a label, not a sentence
_LONG_WORD = 8  # letters; longer words are two tokens, as in real vocabularies
_WORD = re.compile(r"\s*\S+")


def answer_length(seed: int, mean_tokens: int) -> int:
    """Draw how long an answer wants to be: most are shorter than the mean, a few much longer."""
    drawn = random.Random(seed).lognormvariate(-0.2, 0.65) * mean_tokens  # noqa: S311 - not a secret
    return max(SHORTEST_ANSWER_TOKENS, min(round(drawn), 8 * mean_tokens))


def answer(seed: int, wanted_tokens: int, limit: int) -> list[str]:
    """Give a text as its tokens: whole sentences of at least `wanted_tokens`, cut at `limit`."""
    pieces: list[str] = []
    for sentence in _sentences(random.Random(seed)):  # noqa: S311 - not a secret
        for word in _WORD.findall(sentence):
            pieces.extend(_split(word))
        if len(pieces) >= min(wanted_tokens, limit):
            break
    return pieces[:limit]


def label(seed: int) -> list[str]:
    """Give the one-word answer of a classification as its tokens."""
    return [_LABELS[seed % len(_LABELS)], "."]


def _sentences(dice: random.Random) -> Iterator[str]:
    yield dice.choice(_OPENERS)
    while True:
        for _ in range(dice.randint(3, 6)):
            yield " " + _sentence(dice)
        yield "\n\n" + _sentence(dice)


def _sentence(dice: random.Random) -> str:
    parts = (
        dice.choice(_LINKS),
        dice.choice(_SUBJECTS),
        dice.choice(_VERBS),
        dice.choice(_OBJECTS),
    )
    sentence = " ".join(part for part in (*parts, dice.choice(_TAILS)) if part)
    return sentence[0].upper() + sentence[1:] + "."


def _split(word: str) -> tuple[str, ...]:
    if len(word) <= _LONG_WORD:
        return (word,)
    half = (len(word) + 1) // 2
    return (word[:half], word[half:])


def words(seed: int, count: int) -> str:
    """Give the first words of a text."""
    return " ".join("".join(answer(seed, count, 8 * count)).split()[:count]).rstrip(".,")
