"""How complex a request is: a linear model over cheap features, with its weights in the table.

The score is `bias + sum(weight x feature)`; classes share out the number line from below.
No weights are built in: what is simple for one's small model only one's own traffic tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log2
from typing import Final

from routing_agent.wire import ComplexityClass, ComplexityRule

FEATURES: Final[Mapping[str, str]] = {
    "prompt_log2": "log2 of the prompt's estimated tokens",
    "turns": "messages of the conversation, system text included",
    "last_log2": "log2 of the last message's words, plus one",
    "tools": "1 if tools are offered",
    "code": "1 if the last message has marks of code",
    "questions": "words in the last message that ask for reasons or work: why, how, explain, …",
    "numbers": "numbers in the last message",
}
_CODE: Final = re.compile(r"```|\bdef \w|\bclass \w|\breturn\b|[{};]\s*\n|=>|\bSELECT\b|#include")
_ASKING: Final = re.compile(
    r"\b(?:why|how|explain|compare|prove|derive|analy[sz]e|design|debug|refactor|optimi[sz]e|"
    r"implement|evaluate|critique|plan|calculate|solve|step by step)\b",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"\d+")
# Of a longer text only the beginning is looked at: the cost must not grow with the prompt.
LOOKED_AT: Final = 4096


def features(*, prompt_tokens: int, turns: int, has_tools: bool, last: str) -> dict[str, float]:
    """Give the features of a request; `last` is the text of its last message."""
    seen = last[:LOOKED_AT]
    return {
        "prompt_log2": log2(max(prompt_tokens, 1)),
        "turns": float(turns),
        "last_log2": log2(1 + len(seen.split())),
        "tools": float(has_tools),
        "code": float(_CODE.search(seen) is not None),
        "questions": float(len(_ASKING.findall(seen))),
        "numbers": float(len(_NUMBER.findall(seen))),
    }


def score(rule: ComplexityRule, found: Mapping[str, float]) -> float:
    """Give a request's score; an unknown feature counts for nothing."""
    return rule.bias + sum(w * found.get(name, 0.0) for name, w in rule.weights.items())


def class_of(rule: ComplexityRule, value: float) -> ComplexityClass | None:
    """Give the first class that a score is below; the last one takes the rest."""
    for one in rule.classes:
        if one.below is None or value < one.below:
            return one
    return None
