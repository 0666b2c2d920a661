"""Which broken streams may be continued on another replica, and how it is asked to go on.

The other replica gets the request again with the text so far, and writes on from there. That gives
an honest text only where the text is all there is: one choice, no tools, no log-probabilities, no
grammar whose state would be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from routing_agent.core.chance import Chance
from routing_agent.core.retries import Failure, RetryBudget, RetryVerdict, judge_retry
from routing_agent.wire import EngineName, PoolSettings

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
CONTINUED_PATHS: Final = frozenset({CHAT, COMPLETIONS})

# What tells an engine to write on in the last message instead of answering it; of the others no
# way is known. llama.cpp repeats the message in plain answers, but never in a stream.
_WRITE_ON: Final = b'"continue_final_message":true,"add_generation_prompt":false,'
CHAT_FIELDS: Final[Mapping[EngineName, bytes]] = {
    "vllm": _WRITE_ON,
    "sglang": b'"continue_final_message":true,',
    "llamacpp": _WRITE_ON,
}

# Fields that ask for more than text, or tie the text to a state that another replica does not have.
_TIED: Final = (
    "tools",
    "functions",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "suffix",
    "use_beam_search",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "structural_tag",
    "json_schema",
    "regex",
    "ebnf",
    "grammar",
    "audio",
    "prompt_embeds",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "truncate_prompt_tokens",
    "continue_final_message",
)
_MUST_NOT_BE_OFF: Final = ("add_generation_prompt", "skip_special_tokens")


def can_continue(engine: EngineName, path: str) -> bool:
    """Say whether an engine can write on: a completion any, a chat only some."""
    return path == COMPLETIONS or engine in CHAT_FIELDS


def request_fault(asked: Mapping[str, Any], path: str, *, tokens: int) -> str:
    """Say why a request, of which `tokens` were answered, cannot be continued; "" if it can.

    With a seed a client asks for one certain text, which nobody can continue elsewhere; at
    temperature 0 the seed changes nothing.
    """
    tied = next((name for name in _TIED if asked.get(name)), None)
    if tied is not None:
        return f"the request has '{tied}'"
    off = next((name for name in _MUST_NOT_BE_OFF if asked.get(name) is False), None)
    if off is not None:
        return f"the request has '{off}' off"
    if asked.get("n", 1) not in (1, None) or asked.get("best_of", 1) not in (1, None):
        return "the request asks for several choices"
    if _is_formatted(asked.get("response_format")):
        return "the request has 'response_format'"
    if asked.get("seed") is not None and asked.get("temperature") != 0:
        return "the request has a seed"
    return _prompt_fault(asked, path) or _length_fault(asked, path, tokens)


def _is_formatted(wanted: object) -> bool:
    if isinstance(wanted, dict):
        return wanted.get("type") != "text"
    return bool(wanted)


def _prompt_fault(asked: Mapping[str, Any], path: str) -> str:
    if path == COMPLETIONS:
        return "" if isinstance(asked.get("prompt"), str) else "its prompt is not one text"
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        return "its messages are of no known shape"
    return "its last message is an answer" if messages[-1].get("role") == "assistant" else ""


def _length_fault(asked: Mapping[str, Any], path: str, tokens: int) -> str:
    given = asked.get("max_completion_tokens")
    limit = given if given is not None else asked.get("max_tokens")
    if limit is None:
        # Without one a chat may fill the context; a completion ends where its engine's default is.
        return "its length is the engine's own" if path == COMPLETIONS else ""
    if not isinstance(limit, int) or limit <= tokens:
        return "all its tokens were sent"
    return ""


def judge_continuation(
    failure: Failure,
    *,
    attempts: int,
    others: int,
    settings: PoolSettings,
    budget: RetryBudget,
    clock_and_chance: tuple[float, Chance],
) -> RetryVerdict:
    """Judge a stream that broke: by the bounds and the budget of retries.

    An engine that stalled is not asked again, even if it is the only one.
    """
    if failure == "too_slow" and not others:
        return RetryVerdict(retry=False, reason="no other replica is free")
    return judge_retry(
        "broken" if failure in ("too_slow", "lost") else failure,
        attempts=attempts,
        others=others,
        settings=settings,
        budget=budget,
        clock_and_chance=clock_and_chance,
    )
