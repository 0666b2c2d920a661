"""Who talks: conversations that are the same for every router, and the client that holds them.

Arrivals are open (a Poisson process), turns closed: the next one is sent when the answer is through
and its person has thought about it. All lengths and pauses come from the seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import httptools

from bench.machine import KEY, MODEL

BYTES_PER_TOKEN: Final = 4  # as the simulated engine counts
# System texts that conversations share: how often each is met, and its tokens.
SYSTEMS: Final = ((0.5, 200), (0.25, 400), (0.15, 800), (0.1, 1600))
SYSTEM_WEIGHTS: Final = [weight for weight, _ in SYSTEMS]
# A person's words: lognormal, median 120 tokens, mean 190, none above 1,500.
WORDS_MEDIAN: Final = 120
WORDS_SPREAD: Final = 1.0
WORDS_MOST: Final = 1500
MOST_TURNS: Final = 15
LEAST_PAUSE_S: Final = 0.2
ANSWER_LIMIT_S: Final = 60.0
CONTENT: Final = re.compile(rb'"content":\s*"[^"]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """One conversation as it will be held."""

    number: int
    begins_s: float
    system: str
    turns: tuple[str, ...]
    pauses_s: tuple[float, ...]  # after each turn's answer

    @property
    def address(self) -> str:
        """Its person's own address, for routers that go by it."""
        return f"127.1.{self.number // 250}.{self.number % 250 + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How many people come, how often, and how they talk."""

    conversations: int = 90
    per_second: float = 5.0
    turns: float = 6.0  # mean
    pause_s: float = 0.6  # mean
    answer_tokens: int = 24
    seed: int = 1

    def talks(self) -> list[Talk]:
        """Give the conversations in the order in which they begin."""
        chance = random.Random(f"{self.seed}")
        systems = [text(chance, tokens) for _, tokens in SYSTEMS]
        at_s, found = 0.0, []
        for number in range(self.conversations):
            at_s += chance.expovariate(self.per_second)
            found.append(self._talk(number, at_s, systems, chance))
        return found

    def _talk(self, number: int, at_s: float, systems: list[str], chance: random.Random) -> Talk:
        turns = min(1 + int(chance.expovariate(1 / max(self.turns - 0.5, 0.5))), MOST_TURNS)
        return Talk(
            number=number,
            begins_s=at_s,
            system=chance.choices(systems, SYSTEM_WEIGHTS)[0],
            turns=tuple(text(chance, _words(chance)) for _ in range(turns)),
            pauses_s=tuple(
                LEAST_PAUSE_S + chance.expovariate(1 / self.pause_s) for _ in range(turns)
            ),
        )


def text(chance: random.Random, tokens: int) -> str:
    """Give a text of so many tokens that no other begins like."""
    return chance.randbytes(tokens * BYTES_PER_TOKEN // 2).hex()


def _words(chance: random.Random) -> int:
    drawn = WORDS_MEDIAN * chance.lognormvariate(0.0, WORDS_SPREAD)
    return max(8, min(round(drawn), WORDS_MOST))


@dataclass(slots=True)
class Heard:
    """What all people of one run saw. Seconds."""

    ttfts_s: list[float] = field(default_factory=list)
    requests: int = 0
    problems: Counter[str] = field(default_factory=Counter)


class Line(asyncio.Protocol):
    """One person's connection, kept alive; one request at a time."""

    def __init__(self) -> None:
        self._answered: asyncio.Future[None] | None = None
        self._body = bytearray()
        self._first_at: float | None = None
        self.is_lost = False

    async def ask(self, request: bytes) -> tuple[int, bytes, float | None]:
        """Send a request; give the status, the body, and the seconds to its first word."""
        self._answered = asyncio.get_running_loop().create_future()
        self._body.clear()
        self._first_at = None
        sent_at = time.perf_counter()
        self.transport.write(request)
        await self._answered
        first = None if self._first_at is None else self._first_at - sent_at
        return self._parser.get_status_code(), bytes(self._body), first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport: Any = transport
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        """Keep what came, and when the first word did."""
        self._body += data
        if self._first_at is None and CONTENT.search(self._body):
            self._first_at = time.perf_counter()

    def on_message_complete(self) -> None:
        """End the wait."""
        if not self._parser.should_keep_alive():
            self.is_lost = True
            self.transport.close()
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait for what will not come."""
        self.is_lost = True
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(exc or ConnectionResetError("closed"))


async def hold(talk: Talk, port: int, heard: Heard, *, answer_tokens: int, has_key: bool) -> None:
    """Hold one conversation to its end; what goes wrong ends it and is counted."""
    await asyncio.sleep(talk.begins_s)
    messages = [{"role": "system", "content": talk.system}]
    line: Line | None = None
    try:
        for said, pause_s in zip(talk.turns, talk.pauses_s, strict=True):
            messages.append({"role": "user", "content": said})
            if line is None or line.is_lost:
                line = await _connected(port, talk.address)
            request = _request(talk, messages, answer_tokens, has_key=has_key)
            async with asyncio.timeout(ANSWER_LIMIT_S):
                answer = _heard(heard, *await line.ask(request))
            if answer is None:
                return
            messages.append({"role": "assistant", "content": answer})
            await asyncio.sleep(pause_s)
    except TimeoutError:
        heard.problems[f"no answer within {ANSWER_LIMIT_S:.0f} s"] += 1
    except (OSError, httptools.HttpParserError) as error:
        heard.problems[type(error).__name__] += 1
    finally:
        if line is not None:
            line.transport.close()


async def _connected(port: int, address: str) -> Line:
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(Line, "127.0.0.1", port, local_addr=(address, 0))
    return line


def _heard(heard: Heard, status: int, body: bytes, ttft_s: float | None) -> str | None:
    """Book an answer; give its text, `None` if it is not whole."""
    heard.requests += 1
    if status != 200 or ttft_s is None or b"data: [DONE]" not in body:
        heard.problems[f"status {status}" if status != 200 else "a stream that is not whole"] += 1
        return None
    heard.ttfts_s.append(ttft_s)
    return answer_text(body)


def answer_text(body: bytes) -> str:
    """Give the text of a streamed answer."""
    words = []
    for event in body.split(b"\n\n"):
        payload = event.removeprefix(b"data: ")
        if payload.startswith(b"{"):
            for choice in json.loads(payload).get("choices") or []:
                words.append((choice.get("delta") or {}).get("content") or "")
    return "".join(words)


def _request(
    talk: Talk, messages: list[dict[str, str]], answer_tokens: int, *, has_key: bool
) -> bytes:
    content = {
        "model": MODEL, "messages": messages, "stream": True, "max_tokens": answer_tokens,
        "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    body = json.dumps(content, separators=(",", ":")).encode()
    session = b"x-session-id: s%d\r\n" % talk.number if has_key else b""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %b\r\n%bcontent-length: %d\r\n\r\n%b"
        % (KEY.encode(), session, len(body), body)
    )
