"""A client that sees how an answer ends: for programs that break engines on purpose."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from routing_agent.http_client import CallFailed, HttpClient

ANSWER_LIMIT_S = 90.0


@dataclass(slots=True)
class Ending:
    """One request's end, in one word, with what led to it."""

    outcome: str  # "ok", the code of a typed error, or what went wrong
    status: int = 0
    text: str = ""
    replica: str = ""
    began_at: float = 0.0
    ended_at: float = 0.0
    first_token_at: float | None = None
    usage: dict[str, Any] | None = None
    has_done: bool = False
    error: dict[str, Any] = field(default_factory=dict)


def chat(model: str, *, tokens: int, stream: bool, **more: Any) -> dict[str, Any]:
    """Give the request whose greedy text all engines agree on."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "hello world"}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
        **more,
    }


async def ask(url: str, body: dict[str, Any], *, leave_after: int | None = None) -> Ending:
    """Send one chat request; `leave_after` so many tokens (or at once: 0) closes the connection."""
    ending = Ending("no answer", began_at=time.monotonic())
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await _exchange(url, body, ending, leave_after)
    except TimeoutError:
        ending.outcome = f"hung for {ANSWER_LIMIT_S:g} s"
    except (OSError, asyncio.IncompleteReadError) as fault:
        ending.outcome = f"cut: {type(fault).__name__}"
    ending.ended_at = time.monotonic()
    return ending


async def _exchange(
    url: str, body: dict[str, Any], ending: Ending, leave_after: int | None
) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        content = json.dumps(body).encode()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(content), content)
        )
        if leave_after == 0:
            await writer.drain()
            await asyncio.sleep(0.3)  # it is to be running in the engine when its client leaves
            ending.outcome = "left"
            return
        await _read_answer(reader, ending, leave_after)
    finally:
        writer.close()


async def _read_answer(
    reader: asyncio.StreamReader, ending: Ending, leave_after: int | None
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    ending.status = int(head[0].split(" ")[1])
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in head[1:])}
    ending.replica = headers.get("x-signalbox-replica", "")
    if headers.get("content-type", "").startswith("text/event-stream"):
        await _read_stream(reader, headers, ending, leave_after)
        return
    if "content-length" in headers:
        content = await reader.readexactly(int(headers["content-length"]))
    else:
        content = await _dechunked(reader)
    _judge_plain(ending, json.loads(content))


def _judge_plain(ending: Ending, answer: dict[str, Any]) -> None:
    if ending.status != 200:
        ending.error = answer.get("error", answer)
        ending.outcome = f"{ending.status} {ending.error.get('code')}"
        return
    ending.text = answer["choices"][0]["message"]["content"]
    ending.usage = answer.get("usage")
    ending.outcome = "ok"


async def _dechunked(reader: asyncio.StreamReader) -> bytes:
    content = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        content += (await reader.readexactly(size + 2))[:-2]
    return content


async def _read_stream(
    reader: asyncio.StreamReader,
    headers: dict[str, str],
    ending: Ending,
    leave_after: int | None,
) -> None:
    is_chunked = headers.get("transfer-encoding") == "chunked"
    kept, tokens, finish = b"", 0, None
    while True:
        if is_chunked:
            size = int(await reader.readuntil(b"\r\n"), 16)
            data = (await reader.readexactly(size + 2))[:-2]
        else:
            data = await reader.read(65536)
        *events, kept = (kept + data).split(b"\n\n")
        for event in events:
            finish = _note_event(event, ending) or finish
        tokens = len(ending.text)
        if leave_after is not None and tokens >= leave_after:
            ending.outcome = "left"
            return
        if not data:
            break
    if ending.error:
        ending.outcome = f"event {ending.error.get('code')}"
    else:
        ending.outcome = "ok" if finish else "ended without a finish reason"


def _note_event(event: bytes, ending: Ending) -> str | None:
    payload = event.removeprefix(b"data: ")
    if payload == b"[DONE]":
        ending.has_done = True
        return None
    if not event.startswith(b"data:"):
        return None
    chunk = json.loads(payload)
    if chunk.get("error"):
        ending.error = chunk["error"]
        return None
    ending.usage = chunk.get("usage") or ending.usage
    finish = None
    for choice in chunk.get("choices") or []:
        content = (choice.get("delta") or {}).get("content")
        if content:
            ending.first_token_at = ending.first_token_at or time.monotonic()
            ending.text += content
        finish = finish or choice.get("finish_reason")
    return finish


async def get_json(client: HttpClient, url: str) -> dict[str, Any]:
    """Get a JSON page; empty if there is none just now."""
    try:
        answer = await client.call("GET", url, timeout_s=5.0)
    except CallFailed:
        return {}
    return json.loads(answer.body) if answer.ok else {}
