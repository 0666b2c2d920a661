"""Answers of a simulated engine in vLLM's shapes: whole, streamed, embedded."""

from __future__ import annotations

import base64
import os
import random
import struct
import time
from collections.abc import Callable

import msgspec
import xxhash

from routing_agent.simulation.connection import Connection
from routing_agent.simulation.engine import Job
from routing_agent.simulation.faults import Fate
from routing_agent.simulation.requests import EmbeddingInputs, Generation

FINGERPRINT = "vllm-0.32.0-simulated"
VERSION = "0.32.0"
DEFAULT_DIMENSIONS = 384


def usage(order: Generation, job: Job) -> dict[str, object]:
    """Give the usage of a generation so far."""
    return {
        "prompt_tokens": order.prompt_tokens,
        "total_tokens": order.prompt_tokens + job.generated,
        "completion_tokens": job.generated,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens},
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
        kind = "chat.completion.chunk" if order.kind == "chat" else "text_completion"
        identity = msgspec.json.encode(
            {"id": answer_id, "object": kind, "created": int(time.time()), "model": model}
        )
        # The parts of an event that do not change from token to token are written once.
        self._head = b"data: " + identity[:-1] + b',"choices":['
        if order.kind == "chat":
            self._before = self._head + b'{"index":0,"delta":{"content":'
            self._after = b'},"logprobs":null,"finish_reason":null,"token_ids":null}]'
        else:
            self._before = self._head + b'{"index":0,"text":'
            self._after = (
                b',"logprobs":null,"finish_reason":null,"stop_reason":null,'
                b'"prompt_token_ids":null,"token_ids":null}]'
            )
        connection.begin_stream()

    def token(self, job: Job) -> None:
        """Send one token, the last of them with its reason and all that follows."""
        if self._muted:
            return
        chunks = []
        if job.generated == 1 and self._order.kind == "chat":
            chunks.append(self._role_event(job))
        if job.generated < len(self._order.pieces):
            piece = msgspec.json.encode(self._order.pieces[job.generated - 1])
            chunks.append(self._before + piece + self._after + self._ending(job))
        else:
            chunks += self._last_events(job)
        self.connection.send_chunks(*chunks)
        self._is_struck(job)

    def finished(self, job: Job) -> None:
        """End the stream."""
        if not self._muted:
            self.connection.end_stream()

    def _role_event(self, job: Job) -> bytes:
        return (
            self._head + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}]' + self._ending(job)
        )

    def _last_events(self, job: Job) -> list[bytes]:
        order = self._order
        piece = msgspec.json.encode(order.pieces[job.generated - 1])
        reason = msgspec.json.encode(order.finish_reason)
        stop = msgspec.json.encode(order.stop_reason)
        if order.kind == "chat":
            tail = b'},"logprobs":null,"finish_reason":%b,"stop_reason":%b,"token_ids":null}]'
        else:
            tail = (
                b',"logprobs":null,"finish_reason":%b,"stop_reason":%b,'
                b'"prompt_token_ids":null,"token_ids":null}]'
            )
        last = self._before + piece + tail % (reason, stop)
        fingerprint = b',"system_fingerprint":"%b"}\n\n' % FINGERPRINT.encode()
        if not order.include_usage:
            return [last + fingerprint, b"data: [DONE]\n\n"]
        total = b'],"usage":' + msgspec.json.encode(usage(order, job))
        return [last + self._ending(job), self._head + total + fingerprint, b"data: [DONE]\n\n"]

    def _ending(self, job: Job) -> bytes:
        if not self._order.continuous_usage:
            return b"}\n\n"
        return b',"usage":' + msgspec.json.encode(usage(self._order, job)) + b"}\n\n"


class WholeReply(_Reply):
    """Sends a generation as one JSON object."""

    def __init__(
        self, connection: Connection, fate: Fate, order: Generation, answer_id: str, model: str
    ) -> None:
        super().__init__(connection, fate)
        self._order = order
        self._answer_id = answer_id
        self._model = model

    def token(self, job: Job) -> None:
        """Wait for more."""
        self._is_struck(job)

    def finished(self, job: Job) -> None:
        """Send all of it."""
        if not self._muted:
            self.connection.send_json(200, self._body(job))

    def _body(self, job: Job) -> dict[str, object]:
        order = self._order
        text = "".join(order.pieces)
        choice: dict[str, object] = {"index": 0}
        if order.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= {
            "logprobs": None,
            "finish_reason": order.finish_reason,
            "stop_reason": order.stop_reason,
            "token_ids": None,
        }
        return {
            "id": self._answer_id,
            "object": "chat.completion" if order.kind == "chat" else "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": usage(order, job),
        }


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
