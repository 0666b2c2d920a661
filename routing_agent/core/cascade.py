"""Whether a small model's answer is good enough, or the large one is to be asked. Pure.

Confidence is the mean log-probability of the tokens written, where the engine tells it; beside it
count marks that need none: an answer that was cut off, is empty, or says that it cannot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from routing_agent.wire import CascadeRule

_REFUSAL: Final = re.compile(
    r"\A\W*(?:i(?:'m| am) (?:sorry|not sure|unable)|sorry|i (?:can(?:no|')t|do(?:n't| not) know)|"
    r"as an ai\b|i apologi[sz]e|unfortunately,? i\b)",
    re.IGNORECASE,
)
_CUT: Final = frozenset({"length", "max_tokens"})


def doubt(rule: CascadeRule, answer: Any) -> str:
    """Say why an OpenAI answer is not good enough; empty if it is, or if it is no such answer."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or not choices:
        return ""
    for choice in choices:
        if isinstance(choice, dict) and (found := _doubt_of(rule, choice)):
            return found
    return ""


def _doubt_of(rule: CascadeRule, choice: dict[str, Any]) -> str:
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    if message.get("tool_calls"):
        return ""  # it asks for a tool: there is no text to judge
    text = message.get("content") or choice.get("text") or ""
    if rule.on_cut and choice.get("finish_reason") in _CUT:
        return "it was cut off at its length"
    if not isinstance(text, str) or not text.strip():
        return "it is empty"
    if rule.on_refusal and _REFUSAL.match(text):
        return "it says that it cannot"
    if rule.min_mean_logprob is None:
        return ""
    mean = mean_logprob(choice.get("logprobs"))
    if mean is not None and mean < rule.min_mean_logprob:
        return f"mean log-probability {mean:.2f} is below {rule.min_mean_logprob:g}"
    return ""


def mean_logprob(told: Any) -> float | None:
    """Give the mean log-probability of an answer's tokens, in either shape; None if not told."""
    if not isinstance(told, dict):
        return None
    values: list[Any] = []
    if isinstance(told.get("content"), list):
        values = [t.get("logprob") for t in told["content"] if isinstance(t, dict)]
    elif isinstance(told.get("token_logprobs"), list):
        values = told["token_logprobs"]
    return _mean([v for v in values if isinstance(v, int | float)])


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
