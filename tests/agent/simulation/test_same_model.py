"""The model behind HTTP and under the virtual clock is one: the same load, the same times.

The HTTP engine runs on an event loop whose clock jumps to the next timer when all sockets are
quiet. Nothing is waited for, so a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import selectors
from collections.abc import Coroutine
from typing import Any

import pytest

from routing_agent.simulation.profiles import A100_QWEN_7B, Profile
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.sequences import Event, Request
from routing_agent.simulation.server import EngineServer
from routing_agent.simulation.tokens import block_hashes, token_count
from routing_agent.simulation.virtual import VirtualEngines

# Timers of the HTTP engine are whole milliseconds; a step may begin one late and make up for it.
TIMER_S = 0.001
QUIET_S = 0.005  # real seconds; bytes on loopback have arrived at once

PROFILE = dataclasses.replace(A100_QWEN_7B, max_running_sequences=3, kv_blocks=120)
LIMITS = Limits(model="m", longest_request_tokens=PROFILE.longest_request_tokens, answer_tokens=40)

# Seconds, characters of prompt that are shared, of its own, tokens of answer.
LOAD = (
    (0.0, 4000, 400, 30),
    (0.013, 0, 2000, 50),
    (0.2, 4000, 800, 10),
    (0.2005, 4000, 0, 1),
    (0.31, 0, 400, 60),
    (3.0, 4000, 1200, 25),
)


class JumpingSelector(selectors.DefaultSelector):
    """Lets the loop's clock jump over the time in which nothing would happen."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0 if timeout == 0 else QUIET_S)
        if not found and timeout:
            self.now += timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def prompt(number: int, shared: int, own: int) -> str:
    return "s" * shared + (f"{number} mine " * own)[:own]


def body(number: int, shared: int, own: int, tokens: int) -> bytes:
    wanted = {"model": "m", "prompt": prompt(number, shared, own), "max_tokens": tokens}
    return json.dumps(wanted | {"ignore_eos": True, "stream": True}).encode()


async def ask(port: int, at_s: float, data: bytes) -> tuple[float, float]:
    """Send a request at its time; give when its first and last token came, in the loop's time."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await asyncio.sleep(at_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await reader.readuntil(b"data: ")
    first = loop.time() - begin
    await reader.readuntil(b"[DONE]")
    last = loop.time() - begin
    writer.close()
    await writer.wait_closed()
    return first, last


async def over_http(profile: Profile) -> list[tuple[float, float]]:
    server = EngineServer(profile, LIMITS)
    await server.start()
    try:
        work: list[Coroutine[Any, Any, tuple[float, float]]] = [
            ask(server.port, at_s, body(number, *rest)) for number, (at_s, *rest) in enumerate(LOAD)
        ]
        return await asyncio.gather(*work)
    finally:
        await server.stop(1.0)


def under_virtual_clock(profile: Profile) -> list[tuple[float, float]]:
    firsts: dict[str, float] = {}
    lasts: dict[str, float] = {}

    def note(engine: int, event: Event) -> None:
        if event.kind == "token":
            firsts[event.request_id] = event.at
        elif event.kind == "finished":
            lasts[event.request_id] = event.at

    engines = VirtualEngines(profile, 1, note)
    for number, (at_s, *rest) in enumerate(LOAD):
        *lengths, tokens = rest
        data = prompt(number, *lengths).encode()
        engines.advance(at_s)
        request = Request(
            id=str(number),
            prompt_tokens=token_count(data),
            output_tokens=tokens,
            block_hashes=block_hashes(data, profile.block_tokens),
        )
        engines.submit(0, request)
    engines.advance(float("inf"))
    return [(firsts[str(n)], lasts[str(n)]) for n in range(len(LOAD))]


@pytest.mark.parametrize("speed", [1.0, 5.0])
def test_over_http_each_token_comes_when_the_virtual_clock_says(speed: float) -> None:
    profile = PROFILE.faster(speed)
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        live = runner.run(over_http(profile))
    virtual = under_virtual_clock(profile)
    assert [first for first, _ in live] == pytest.approx([f for f, _ in virtual], abs=2 * TIMER_S)
    assert [last for _, last in live] == pytest.approx(
        [last for _, last in virtual], abs=2 * TIMER_S
    )
