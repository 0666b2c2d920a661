"""Answers of a simulated engine in vLLM's shapes: whole, streamed, embedded."""

from __future__ import annotations

import base64
import os
import random
import secrets
import struct
import time
from collections.abc import Callable

import msgspec
import xxhash

from routing_agent.simulation import logprobs
from routing_agent.simulation.choices import Choice
from routing_agent.simulation.connection import Connection
from routing_agent.simulation.engine import Job
from routing_agent.simulation.faults import Fate
from routing_agent.simulation.requests import EmbeddingInputs, Generation

FINGERPRINT = "vllm-0.32.0-simulated"
VERSION = "0.32.0"
DEFAULT_DIMENSIONS = 384
_DONE = b"data: [DONE]\n\n"
_FINGERPRINT_END = b',"system_fingerprint":"%b"}\n\n' % FINGERPRINT.encode()


class Progress:
    """How far the choices of one request have come."""

    def __init__(self, order: Generation) -> None:
        self._order = order
        self._generated = [0] * len(order.choices)
        self._cached_tokens = 0
        self._unfinished = len(order.choices)

    def note(self, job: Job) -> None:
        """Note one more token of a choice."""
        self._generated[job.choice] = job.generated
        if job.choice == 0:  # the prompt is one for all; the first to read it tells
            self._cached_tokens = job.cached_tokens

    def finish(self) -> bool:
        """Note the end of a choice; true if it was the last."""
        self._unfinished -= 1
        return self._unfinished == 0

    @property
    def is_all(self) -> bool:
        """Whether every token of every choice is there."""
        lengths = [len(choice.pieces) for choice in self._order.choices]
        return self._generated == lengths

    def usage(self, job: Job | None = None) -> dict[str, object]:
        """Give the usage so far, of all choices or of one."""
        prompt = self._order.prompt_tokens
        output = sum(self._generated) if job is None else job.generated
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }


class _Reply:
    """What all answers share: a place to write to, and the fault that may befall them."""

    def __init__(self, connection: Connection, fate: Fate) -> None:
        self.connection = connection
        self._fate = fate
        self._muted = False

    def _is_struck(self, job: Job) -> bool:
        """Carry out the fault that is due at this token; True once nothing more may be sent."""
        if self._fate.after_tokens == job.generated:
            if self._fate.crash == "exit":
                os._exit(1)
            if self._fate.crash == "reset":
                self.connection.reset()
            self._muted = True
        return self._muted


class StreamReply(_Reply):
    """Sends each token as a server-sent event."""

    def __init__(
        self, connection: Connection, fate: Fate, order: Generation, answer_id: str, model: str
    ) -> None:
        super().__init__(connection, fate)
        self._order = order
        self._progress = Progress(order)
        kind = "chat.completion.chunk" if order.kind == "chat" else "text_completion"
        identity = msgspec.json.encode(
            {"id": answer_id, "object": kind, "created": int(time.time()), "model": model}
        )
        # The parts of an event that do not change from token to token are written once.
        self._head = b"data: " + identity[:-1] + b',"choices":['
        self._has_begun = False
        connection.begin_stream()

    def token(self, job: Job) -> None:
        """Send one token, the last of them with its reason and all that follows."""
        if self._muted:
            return
        self._progress.note(job)
        chunks = []
        if not self._has_begun:
            self._has_begun = True
            chunks += self._first_events(job)
        if self._order.choices[job.choice].tool is not None:
            chunks += self._call_events(job)
        else:
            chunks.append(self._text_event(job))
        if self._progress.is_all:
            chunks += self._last_events(job)
        self.connection.send_chunks(*chunks)
        self._is_struck(job)

    def finished(self, job: Job) -> None:
        """End the stream, if this was the last of its choices."""
        if not self._muted and self._progress.finish():
            self.connection.end_stream()

    def _first_events(self, job: Job) -> list[bytes]:
        if self._order.kind != "chat":
            return []
        return [
            self._head
            + b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,' % number
            + b'"finish_reason":null}]'
            + self._ending(job)
            for number in range(len(self._order.choices))
        ]

    def _text_event(self, job: Job) -> bytes:
        choice = self._order.choices[job.choice]
        piece = msgspec.json.encode(choice.pieces[job.generated - 1])
        logprobs = self._logprobs(job)
        if self._order.kind == "chat":
            before = b'{"index":%d,"delta":{"content":%b},"logprobs":%b,"finish_reason":'
            after = b',"token_ids":null}]'
        else:
            before = b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":'
            after = b',"prompt_token_ids":null,"token_ids":null}]'
        reason = self._reason(job, always=self._order.kind != "chat")
        return (
            self._head + before % (job.choice, piece, logprobs) + reason + after + self._close(job)
        )

    def _call_events(self, job: Job) -> list[bytes]:
        """Give the events of one token of a tool call: its name first, its reason last."""
        choice = self._order.choices[job.choice]
        events = []
        if job.generated == 1:
            call = call_of(choice, "") | {"index": 0}
            events.append(self._delta_event(job, {"content": None, "tool_calls": [call]}))
        more = {"index": 0, "function": {"arguments": choice.pieces[job.generated - 1]}}
        events.append(self._delta_event(job, {"content": None, "tool_calls": [more]}))
        if job.generated == len(choice.pieces):
            reason = self._reason(job, always=False)
            tail = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":' % job.choice
            events.append(self._head + tail + reason + b',"token_ids":null}]' + self._close(job))
        return events

    def _delta_event(self, job: Job, delta: dict[str, object]) -> bytes:
        choice = {"index": job.choice, "delta": delta, "logprobs": None, "finish_reason": None,
                  "token_ids": None}  # fmt: skip
        return self._head + msgspec.json.encode(choice) + b"]" + self._ending(job)

    def _reason(self, job: Job, *, always: bool) -> bytes:
        """Give the value of `finish_reason` and what follows it: `always`, the stop reason too."""
        choice = self._order.choices[job.choice]
        if job.generated < len(choice.pieces):
            return b'null,"stop_reason":null' if always else b"null"
        stop = msgspec.json.encode(choice.stop_reason)
        return b'"%b","stop_reason":%b' % (choice.finish_reason.encode(), stop)

    def _close(self, job: Job) -> bytes:
        """End an event; the last of a choice carries the fingerprint if no usage follows."""
        is_last = job.generated == len(self._order.choices[job.choice].pieces)
        if is_last and not self._order.include_usage:
            return _FINGERPRINT_END
        return self._ending(job)

    def _last_events(self, job: Job) -> list[bytes]:
        if not self._order.include_usage:
            return [_DONE]
        total = b'],"usage":' + msgspec.json.encode(self._progress.usage())
        return [self._head + total + _FINGERPRINT_END, _DONE]

    def _ending(self, job: Job) -> bytes:
        if not self._order.continuous_usage:
            return b"}\n\n"
        return b',"usage":' + msgspec.json.encode(self._progress.usage(job)) + b"}\n\n"

    def _logprobs(self, job: Job) -> bytes:
        top = self._order.top_logprobs
        if top is None:
            return b"null"
        pieces, at = self._order.choices[job.choice].pieces, job.generated - 1
        token = pieces[at : at + 1]
        if self._order.kind == "chat":
            return msgspec.json.encode(logprobs.of_chat(token, at, top))
        offset = sum(map(len, pieces[:at]))
        return msgspec.json.encode(logprobs.of_completion(token, at, offset, top))


class WholeReply(_Reply):
    """Sends a generation as one JSON object."""

    def __init__(
        self, connection: Connection, fate: Fate, order: Generation, answer_id: str, model: str
    ) -> None:
        super().__init__(connection, fate)
        self._order = order
        self._progress = Progress(order)
        self._answer_id = answer_id
        self._model = model

    def token(self, job: Job) -> None:
        """Wait for more."""
        self._progress.note(job)
        self._is_struck(job)

    def finished(self, job: Job) -> None:
        """Send all of it, if this was the last of its choices."""
        if not self._muted and self._progress.finish():
            self.connection.send_json(200, self._body())

    def _body(self) -> dict[str, object]:
        order = self._order
        return {
            "id": self._answer_id,
            "object": "chat.completion" if order.kind == "chat" else "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [self._choice(i, choice) for i, choice in enumerate(order.choices)],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._progress.usage(),
        }

    def _choice(self, number: int, choice: Choice) -> dict[str, object]:
        text, top = "".join(choice.pieces), self._order.top_logprobs
        shown: dict[str, object] = {"index": number}
        told = None
        if self._order.kind == "chat":
            shown["message"] = message_of(choice, text)
            if top is not None:
                told = logprobs.of_chat(choice.pieces, 0, top)
        else:
            shown["text"] = text
            if top is not None:
                told = logprobs.of_completion(choice.pieces, 0, 0, top)
        return shown | {
            "logprobs": told,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
        }


def message_of(choice: Choice, text: str) -> dict[str, object]:
    """Give the message of a chat's answer: words, or a call."""
    if choice.tool is None:
        return {"role": "assistant", "content": text, "refusal": None}
    calls = [call_of(choice, text)]
    return {"role": "assistant", "content": None, "refusal": None, "tool_calls": calls}


def call_of(choice: Choice, arguments: str) -> dict[str, object]:
    """Give the call of a tool, with an id of its own."""
    function = {"name": choice.tool, "arguments": arguments}
    call_id = f"chatcmpl-tool-{secrets.token_hex(8)}"
    return {"id": call_id, "type": "function", "function": function}


class EmbeddingReply(_Reply):
    """Sends one vector for each text."""

    def __init__(
        self,
        connection: Connection,
        fate: Fate,
        inputs: EmbeddingInputs,
        answer_id: str,
        model: str,
    ) -> None:
        super().__init__(connection, fate)
        self._inputs = inputs
        self._answer_id = answer_id
        self._model = model

    def token(self, job: Job) -> None:
        """An embedding makes no tokens."""

    def finished(self, job: Job) -> None:
        """Send the vectors."""
        inputs = self._inputs
        dimensions = inputs.dimensions or DEFAULT_DIMENSIONS
        written: Callable[[list[float]], object] = _as_base64 if inputs.base64 else list
        data = [
            {"index": i, "object": "embedding", "embedding": written(vector(text, dimensions))}
            for i, text in enumerate(inputs.texts)
        ]
        self.connection.send_json(
            200,
            {
                "id": self._answer_id,
                "object": "list",
                "created": int(time.time()),
                "model": self._model,
                "data": data,
                "usage": {
                    "prompt_tokens": inputs.prompt_tokens,
                    "total_tokens": inputs.prompt_tokens,
                    "completion_tokens": 0,
                    "prompt_tokens_details": None,
                },
            },
        )


def vector(text: bytes, dimensions: int) -> list[float]:
    """Give a unit vector that depends on the text alone."""
    dice = random.Random(xxhash.xxh3_64_intdigest(text))  # noqa: S311 - not a secret
    values = [dice.random() - 0.5 for _ in range(dimensions)]
    length = sum(value * value for value in values) ** 0.5
    return [round(value / length, 7) for value in values]


def _as_base64(values: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()
