"""The least an engine can do, for measuring what stands in front of it: canned answers.

python -m bench.engine PORT

Plain requests are answered at once. A stream gets `max_tokens` tokens: the first at once, then one
every 20 ms, all streams in the same tick, as the steps of an engine with continuous batching make
them. A prompt that says "every 5 ms" sets another pace: no router changes a prompt.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from typing import Any

import httptools
import uvloop

STEP_S = 0.02
PLAIN_BODY = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"' + b"word " * 20 + b'"},"logprobs":null,'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"total_tokens":40,"completion_tokens":20}}'
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm"}]}'
METRICS = (
    'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
    'vllm:num_requests_waiting{engine="0",model_name="m"} 0.0\n'
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0\n'
    f"process_start_time_seconds {time.time()}\n"
).encode()
MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
PACE_MS = re.compile(rb"every (\d+) ms")
STREAMED = re.compile(rb'"stream":\s*true')


def answer(body: bytes, kind: bytes = b"application/json") -> bytes:
    """Give a complete response."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
    return head + body


def chunk(data: bytes) -> bytes:
    """Give one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(choices: bytes, more: bytes = b"") -> bytes:
    """Give one server-sent event as a chunk."""
    return chunk(
        b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk",'
        b'"created":1795972597,"model":"m","choices":[%b]%b}\n\n' % (choices, more)
    )


TOKEN = event(
    b'{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}'
)
LAST = (
    event(b'{"index":0,"delta":{"content":"."},"logprobs":null,"finish_reason":"length"}')
    + event(b"", b',"usage":{"prompt_tokens":60,"total_tokens":160,"completion_tokens":100}')
    + chunk(b"data: [DONE]\n\n")
    + b"0\r\n\r\n"
)
PLAIN = answer(PLAIN_BODY)
PAGES = {
    b"/health": answer(b""),
    b"/v1/models": answer(MODELS),
    b"/metrics": answer(METRICS, b"text/plain; version=1.0.0"),
    b"/version": answer(b'{"version":"0.32.0"}'),
}


class Connection(asyncio.Protocol):
    """One client."""

    paces: dict[float, Pace] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self.transport: Any = transport
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._url = b""
        self._pace: Pace | None = None

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the stream of a client that left."""
        if self._pace is not None:
            self._pace.left.pop(self, None)

    def on_url(self, url: bytes) -> None:
        """Keep the path."""
        self._url = url

    def on_body(self, data: bytes) -> None:
        """Keep the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """Answer, or start a stream."""
        body = b"".join(self._body)
        self._body.clear()
        if self._parser.get_method() == b"GET":
            self.transport.write(PAGES.get(self._url, PAGES[b"/health"]))
        elif STREAMED.search(body):
            self._begin_stream(body)
        else:
            self.transport.write(PLAIN)

    def _begin_stream(self, body: bytes) -> None:
        asked, told = MAX_TOKENS.search(body), PACE_MS.search(body)
        tokens = int(asked[1]) if asked else 100
        step_s = int(told[1]) / 1000 if told else STEP_S
        self.transport.write(STREAM_HEAD + TOKEN)
        self._pace = self.paces.get(step_s)
        if self._pace is None:
            self._pace = self.paces[step_s] = Pace(step_s)
        self._pace.left[self] = tokens - 1


class Pace:
    """Streams whose tokens come in the same ticks."""

    def __init__(self, step_s: float) -> None:
        self.left: dict[Connection, int] = {}
        self._ticking = asyncio.ensure_future(self._tick(step_s))

    async def _tick(self, step_s: float) -> None:
        while True:
            await asyncio.sleep(step_s)
            for connection, left in list(self.left.items()):
                if left > 1:
                    self.left[connection] = left - 1
                    connection.transport.write(TOKEN)
                else:
                    del self.left[connection]
                    connection.transport.write(LAST)


async def serve(port: int) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
