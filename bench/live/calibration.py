"""How long a text must be: learned from two questions, since each tokenizer cuts differently."""

from __future__ import annotations

from bench.live.client import OK, Answer, Clients
from bench.live.prompts import TextSize, words
from bench.live.sending import Endpoint, chat_body
from bench.machine import BenchError

_SHORT_BYTES = 1000
_LONG_BYTES = 5000


async def text_size(clients: Clients, endpoint: Endpoint, model: str, seed: str) -> TextSize:
    """Ask twice and count; raises `BenchError` if the first questions are not answered."""
    short = await _prompt_tokens(clients, endpoint, model, words(f"{seed}/short", _SHORT_BYTES))
    long = await _prompt_tokens(clients, endpoint, model, words(f"{seed}/long", _LONG_BYTES))
    if long <= short:
        raise BenchError(
            f"{endpoint.target} counts {short} tokens in a text of {_SHORT_BYTES} bytes and {long} "
            f"in one of {_LONG_BYTES}: give --bytes-per-token"
        )
    rate = (_LONG_BYTES - _SHORT_BYTES) / (long - short)
    return TextSize(rate, max(0, round(short - _SHORT_BYTES / rate)))


async def _prompt_tokens(clients: Clients, endpoint: Endpoint, model: str, text: str) -> int:
    headers = endpoint.headers("load-calibration", session=None)
    answer = await clients.ask(
        endpoint.target, "/v1/chat/completions", headers, chat_body(model, text, 1)
    )
    if answer.outcome != OK:
        raise BenchError(_refused(endpoint, answer))
    if answer.usage is None or not answer.usage.prompt_tokens:
        raise BenchError(f"{endpoint.target} tells no usage: give --bytes-per-token")
    return answer.usage.prompt_tokens


def _refused(endpoint: Endpoint, answer: Answer) -> str:
    hint = {401: " Is --key right?", 404: " Name one it serves with --model."}
    return (
        f"{endpoint.target} does not answer a first question: {answer.outcome}. {answer.detail}"
        f"{hint.get(answer.status or 0, '')}"
    )
