"""A trivially fast engine for measuring what stands in front of it: canned answers, no thinking.

python bench/fast_engine.py PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
import uvloop

EVENT_GAP_S = 0.005
DEFAULT_TOKENS = 100

PLAIN_BODY = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"'
    + b"word "
    * 20
    + b'"},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":20,'
    b'"total_tokens":40}}'
)
PLAIN = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(PLAIN_BODY)
) + PLAIN_BODY
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(content: str) -> bytes:
    return _chunk(
        b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk",'
        b'"created":1795972597,"model":"m","choices":[{"index":0,"delta":{"content":"%b"},'
        b'"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n' % content.encode()
    )


TOKEN = _event(" word")
LAST = _chunk(
    b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
) + _chunk(b"data: [DONE]\n\n")


class Engine(asyncio.Protocol):
    """Answers plain requests at once, streams a token every few milliseconds."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport: Any = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self.parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Keep the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """Answer."""
        body, self.body = self.body, b""
        if b'"stream":true' in body or b'"stream": true' in body:
            self.transport.write(STREAM_HEAD)
            self.left = DEFAULT_TOKENS
            self._token()
        else:
            self.transport.write(PLAIN)

    def _token(self) -> None:
        if self.transport.is_closing():
            return
        if self.left == 0:
            self.transport.write(LAST + b"0\r\n\r\n")
            return
        self.left -= 1
        self.transport.write(TOKEN)
        asyncio.get_running_loop().call_later(EVENT_GAP_S, self._token)


async def main(port: int) -> None:
    """Serve until killed."""
    await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(int(sys.argv[1])))
