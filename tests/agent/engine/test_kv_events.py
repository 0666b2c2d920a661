"""Following an engine's KV events: order, gaps, restarts, and messages that are none."""

from __future__ import annotations

import ast
import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routing_agent import wire
from routing_agent.core.kv_address import kv_address
from routing_agent.core.kv_view import Cleared, Ended, Removed, Stored
from routing_agent.core.replica import Replica
from routing_agent.engine.kv_events import KvListener, judge_arrival
from routing_agent.engine.kv_format import NotEvents, read_batch, sequence_of
from tests.agent.core import build
from tests.fakes.kv_publisher import CLEARED, KvPublisher, removed, stored

SHARED = Path(__file__).parents[4] / "shared" / "engine_samples"


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a condition anywhere, no event to wait for
            await asyncio.sleep(0.01)


class Followed:
    """A publisher and an agent's listener that follows it."""

    def __init__(self, publisher: KvPublisher, *, replays: bool) -> None:
        self.publisher = publisher
        replay = f"tcp://127.0.0.1:{publisher.replay_port}" if replays else ""
        events = f"tcp://127.0.0.1:{publisher.port}"
        settings = build.settings(policy="expected_ttft", kv_events=events, kv_replay=replay)
        self.fleet = build.fleet(build.pool(size=1, settings=settings))
        self.replica: Replica = self.fleet.replicas["p0"]
        self.replica.profile.resize(1000)
        self.listener = KvListener(self.fleet)
        self.task = asyncio.create_task(self.listener.run())

    @property
    def held(self) -> int:
        view = self.replica.cache.view
        return 0 if view is None else view.held_tokens // 16

    async def heard(self) -> Any:
        """Wait until a first message was heard (a subscriber joins in its own time)."""
        async with asyncio.timeout(60):
            while not self.listener.followers or self.follower.heard_at is None:
                await self.publisher.publish(removed(999))
                await asyncio.sleep(0.02)
        return self.follower

    @property
    def follower(self) -> Any:
        return self.listener.followers[self.replica]

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def publisher() -> AsyncIterator[KvPublisher]:
    made = await KvPublisher().start()
    yield made
    await made.stop()
    made.end()


async def test_an_engines_cache_is_followed_over_gaps_and_restarts(publisher: KvPublisher) -> None:
    await publisher.publish(stored([1, 2]))  # before anybody listens: told by replay
    one = Followed(publisher, replays=True)
    try:
        await until(lambda: one.held == 2)
        await one.heard()
        await publisher.publish(stored([3], parent=2), lose=True)
        await publisher.publish(stored([4], parent=3))
        await until(lambda: one.held == 4)
        assert one.follower.lost == 0
        one.replica.profile.insert([901, 902], time.monotonic())
        await publisher.publish(CLEARED)
        await until(lambda: one.held == 0)
        assert len(one.replica.profile) == 0
        one.replica.profile.insert([901, 902], time.monotonic())
        await publisher.stop()
        await publisher.start()
        async with asyncio.timeout(60):
            while one.held != 1:  # it joins again in its own time; what it missed is replayed
                await publisher.publish(stored([7]))
                await asyncio.sleep(0.02)
        assert len(one.replica.profile) == 0, "another process: its cache is empty"
        await until(lambda: "16 tokens held" in one.replica.cache.events)
    finally:
        await one.stop()


async def test_a_gap_that_cannot_be_closed_leaves_the_guess(publisher: KvPublisher) -> None:
    one = Followed(publisher, replays=False)
    try:
        await one.heard()
        await publisher.publish(stored([1, 2]))
        await until(lambda: one.held == 2)
        one.replica.profile.insert([901, 902], time.monotonic())
        await publisher.publish(removed(2), lose=True)
        await publisher.publish(stored([5], parent=2))
        await until(lambda: one.follower.lost == 1)
        assert len(one.replica.profile) == 2
        await until(lambda: "1 gap(s) could not be closed" in one.replica.cache.events)
        await publisher.events.send_multipart([b"kv", b"short", b"x"])
        await until(lambda: "not 8" in one.replica.cache.events)
        one.fleet.apply(build.table(build.pool(size=1), epoch=2), now=build.NOW, wall=build.NOW)
        await until(lambda: not one.listener.followers)
        assert (one.replica.cache.view, one.replica.cache.events) == (None, "")
    finally:
        await one.stop()


async def test_what_the_engine_tells_meets_what_we_sent(publisher: KvPublisher) -> None:
    one = Followed(publisher, replays=True)
    try:
        await one.heard()
        view, sent_at = one.replica.cache.view, time.monotonic()
        assert view is not None
        one.replica.profile.insert([901, 902], sent_at)
        await publisher.publish(stored([11, 12]))
        await until(lambda: one.held == 2)
        view.note_ended(Ended([901, 902], 512, 32, 0, sent_at, time.monotonic()))
        await until(lambda: view.counts["found"] == 1)
        await publisher.publish(removed(12))
        await until(lambda: len(one.replica.profile) == 1)
        one.replica.note_restart(time.monotonic())  # the scraper saw another process
        await until(lambda: one.held == 0)  # though that has told nothing yet
        await publisher.publish(removed(99))
        await until(lambda: one.held == 1)  # said again by replay
    finally:
        await one.stop()


@pytest.mark.parametrize(
    ("number", "at", "how"),
    [(6, 9.0, "next"), (8, 9.0, "gap"), (5, 5.0, "again"), (0, 9.0, "restart"), (3, 4.0, "again")],
)
def test_how_a_message_follows_on_the_last_one(number: int, at: float, how: str) -> None:
    assert judge_arrival(number, at, last=5, last_at=5.0) == how


def test_the_first_message_follows_on_nothing_or_leaves_a_gap() -> None:
    assert judge_arrival(0, 1.0, last=None, last_at=0.0) == "next"
    assert judge_arrival(4, 1.0, last=None, last_at=0.0) == "gap"


def batch(*events: Any) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def test_older_engines_send_lists_and_other_hashes() -> None:
    listed = ["BlockStored", [b"\x00" * 24 + b"\x00" * 7 + b"\x05", -1], None, [1, 2, 3, 4], 2, 7]
    found = read_batch(batch(listed, ["BlockRemoved", [5]], ["AllBlocksCleared"], ["Else"]))
    first, second, third = found.events
    assert isinstance(first, Stored)
    assert (first.hashes, first.block_tokens) == ([5, 2**64 - 1], 2)
    assert first.extras[0] == first.extras[1] != b""
    assert isinstance(second, Removed)
    assert isinstance(third, Cleared)
    assert found.at == 1.5


def test_what_other_memories_hold_is_left_out() -> None:
    other = {**stored([1]), "medium": "CPU"}
    group = {**stored([1]), "group_idx": 1}
    assert read_batch(batch(other, group, {"type": "Else"})).events == []


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode(["x", []]),
        batch(5), batch({**stored([1]), "token_ids": [1]}), batch({"type": "BlockRemoved"}),
        batch({**stored([1]), "token_ids": [-1] * 16}), batch(removed("x")),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_is_no_event_says_so(payload: bytes) -> None:
    with pytest.raises(NotEvents):
        read_batch(payload)


def test_numbers_have_eight_bytes() -> None:
    assert sequence_of(b"\x00" * 7 + b"\x09") == 9
    with pytest.raises(NotEvents, match="3 bytes"):
        sequence_of(b"abc")


@pytest.mark.skipif(not SHARED.is_dir(), reason="no captures of real engines beside the repository")
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_captures_of_real_engines_are_understood(engine: str) -> None:
    text = (SHARED / engine / "kv_events.txt").read_text()
    words = {"null": None, "true": True, "false": False}
    kinds: set[type] = set()
    for line in text.splitlines():
        found = re.match(r"frames=3 .*? payload_bytes=\d+ (\[.*\])$", line)
        if found is None:
            continue
        told = re.sub(r"\b(null|true|false)\b", lambda m: str(words[m.group()]), found.group(1))
        kinds |= {
            type(e) for e in read_batch(msgspec.msgpack.encode(ast.literal_eval(told))).events
        }
    assert Stored in kinds


def test_addresses_are_filled_in_for_each_engine() -> None:
    patterns = {"kv_events": "tcp://{host}:{port+1000}", "kv_replay": "ipc:///run/{port}.replay"}
    settings = wire.PoolSettings(**patterns)
    found = kv_address(settings, "http://[::1]:8301")
    assert (found.events, found.replay) == ("tcp://[::1]:9301", "ipc:///run/8301.replay")
    plain = kv_address(wire.PoolSettings(kv_events="tcp://{host}:5557"), "http://gpu-1:8000")
    assert (plain.events, plain.replay) == ("tcp://gpu-1:5557", "")
