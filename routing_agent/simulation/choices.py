"""What a simulated engine says: one or several texts, or a call of one of the client's tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import xxhash

from routing_agent.simulation.text import LABEL_TOKENS, answer, answer_length, label, words

Finish = Literal["stop", "length"]
_PIECE_LETTERS = 6  # of a tool call's arguments in one token
_SHORT_WORDS = 3


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a body that decide on the words."""

    stop: str | list[str] | None = None
    n: int | None = 1
    temperature: float | None = None
    seed: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False


class Function(msgspec.Struct, frozen=True):
    """A function that a client offers."""

    name: str
    parameters: dict[str, Any] | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool that a client offers; only functions are called."""

    function: Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer: its tokens and why they end. With a `tool` they are the call's arguments."""

    pieces: list[str]
    finish: Finish
    stop_reason: str | None = None
    tool: str | None = None

    @property
    def finish_reason(self) -> str:
        """The reason as the API words it."""
        return "tool_calls" if self.tool and self.finish == "stop" else self.finish


def choices(
    asked: Sampling, prompt: bytes, limit: int, mean_tokens: int, tool: Tool | None = None
) -> tuple[Choice, ...]:
    """Give the `n` answers to a prompt: the same every time, and no two alike."""
    seeds = (
        xxhash.xxh3_64_intdigest(prompt, ((asked.seed or 0) + number) % 2**64)
        for number in range(asked.n or 1)
    )
    if tool is not None:
        return tuple(_call(seed, tool.function, limit) for seed in seeds)
    return tuple(_text(asked, seed, limit, mean_tokens) for seed in seeds)


def chosen(tools: list[Tool], wanted: str | dict[str, Any] | None, prompt: bytes) -> Tool | None:
    """Give the tool to call: the one named, else any; `None` if the name is not there."""
    if isinstance(wanted, dict):
        name = (wanted.get("function") or {}).get("name")
        return next((tool for tool in tools if tool.function.name == name), None)
    return tools[xxhash.xxh3_64_intdigest(prompt) % len(tools)]


def after(pieces: list[str], said: str) -> list[str] | None:
    """Give the pieces that follow on what was said; `None` if these did not begin so."""
    for number, piece in enumerate(pieces):
        if not said:
            return pieces[number:]
        if not piece.startswith(said[: len(piece)]):
            return None
        if len(piece) > len(said):
            return [piece[len(said) :], *pieces[number + 1 :]]
        said = said[len(piece) :]
    return None if said else []


def _text(asked: Sampling, seed: int, limit: int, mean_tokens: int) -> Choice:
    if asked.ignore_eos:
        pieces = answer(seed, limit, limit)
    elif limit <= LABEL_TOKENS:
        pieces = label(seed)[:limit]
    else:
        wanted = max(answer_length(seed, mean_tokens), asked.min_tokens)
        pieces = answer(seed, wanted, limit)
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    cut = _first_stop("".join(pieces), stops)
    if cut is not None:
        kept = _cut(pieces, cut[0], len(cut[1]))
        return Choice(pieces=kept, finish="stop", stop_reason=cut[1])
    return Choice(pieces=pieces, finish="length" if len(pieces) >= limit else "stop")


def _first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    found = [(text.find(stop), stop) for stop in stops if stop]
    return min((hit for hit in found if hit[0] >= 0), default=None)


def _cut(pieces: list[str], position: int, stop_length: int) -> list[str]:
    """Keep the tokens up to the one that completes the stop string, and the text before it."""
    kept: list[str] = []
    start = 0
    for piece in pieces:
        kept.append(piece[: max(0, position - start)])
        start += len(piece)
        if start >= position + stop_length:
            break
    return kept


def _call(seed: int, function: Function, limit: int) -> Choice:
    fields = (function.parameters or {}).get("properties")
    fields = fields if isinstance(fields, dict) else {}
    arguments = {name: _value(seed + k, field) for k, (name, field) in enumerate(fields.items())}
    text = msgspec.json.encode(arguments).decode()
    pieces = [text[i : i + _PIECE_LETTERS] for i in range(0, len(text), _PIECE_LETTERS)]
    finish: Finish = "stop" if len(pieces) <= limit else "length"
    return Choice(pieces=pieces[:limit], finish=finish, tool=function.name)


def _value(seed: int, schema: Any) -> Any:
    """Give a value of a JSON schema's type, as far as a plain schema tells it."""
    schema = schema if isinstance(schema, dict) else {}
    allowed = schema.get("enum")
    if isinstance(allowed, list) and allowed:
        return allowed[seed % len(allowed)]
    kinds: dict[Any, Any] = {
        "integer": seed % 100,
        "number": seed % 1000 / 10,
        "boolean": seed % 2 == 0,
        "array": [],
        "object": {},
        "null": None,
    }
    kind = schema.get("type", "string")
    return kinds[kind] if isinstance(kind, str) and kind in kinds else words(seed, _SHORT_WORDS)
