"""Follows what engines publish of their KV caches, where a pool says how.

A subscriber for each replica: messages are numbered, so a gap is seen; what was missed is asked for
again where the engine keeps it (its replay socket), else what was learned from it is dropped and
the profile is the guess that it is without events. A number that starts anew is another process,
whose cache is empty: the replica's profile is forgotten at that message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from routing_agent.core.attention import next_tick_s
from routing_agent.core.fleet import Fleet
from routing_agent.core.kv_address import KvAddress, kv_address
from routing_agent.core.kv_view import KvContents, KvView
from routing_agent.core.replica import Replica
from routing_agent.engine.kv_format import Batch, NotEvents, read_batch, sequence_of

if TYPE_CHECKING:
    import zmq.asyncio

log = structlog.get_logger()

TICK_S: Final = 0.5
REPLAY_LIMIT_S: Final = 5.0
AGAIN_S: Final = 5.0
SAME_RESTART_S: Final = 10.0  # numbers that start anew, and what the scraper sees of it
QUEUED_MESSAGES: Final = 20_000  # while we are busy; more are lost, seen as a gap and replayed
MESSAGES_A_TURN: Final = 16  # then the requests of this loop have their turn
END_OF_REPLAY: Final = b"\xff" * 8
NO_PACKAGE: Final = "needs the package pyzmq on this node: pip install pyzmq"

Arrival = Literal["next", "gap", "again", "restart"]


def judge_arrival(number: int, at: float, *, last: int | None, last_at: float) -> Arrival:
    """Say how a message follows on the last one, by its number and its engine's clock.

    A number that was there before is that message again, unless it is newer than the newest: then
    the engine counts anew.
    """
    if last is None:
        return "next" if number == 0 else "gap"
    if number == last + 1:
        return "next"
    if number > last:
        return "gap"
    return "restart" if at > last_at else "again"


@dataclass
class Follower:
    """Follows one replica's events."""

    replica: Replica
    address: KvAddress
    view: KvView
    last: int | None = None  # number of the newest message
    last_at: float = 0.0  # its time, by the engine's clock
    heard_at: float | None = None  # monotonic
    lost: int = 0  # gaps that could not be closed
    error: str = ""
    restarted_at: float | None = None  # when numbers started anew; monotonic
    seen_restart: float | None = None  # the replica's, as far as it was heeded

    def words(self, now: float) -> str:
        """Say for people how far this replica's events can be trusted."""
        if self.error:
            return self.error
        if self.heard_at is None:
            return f"nothing heard yet from {self.address.events}"
        counts = self.view.counts
        told = (
            f"last heard {now - self.heard_at:.0f} s ago, {self.view.held_tokens} tokens held, "
            f"{counts['found']} of our prompts known by their blocks, "
            f"{counts['unclear']} like others of their time, {counts['unseen']} not seen"
        )
        if not self.view.is_followed:
            size = self.view.block_tokens
            return f"only clearing is followed: blocks of {size} token(s) are too small; {told}"
        if self.lost:
            told += f", {self.lost} gap(s) could not be closed"
        return told

    async def run(self, context: zmq.asyncio.Context) -> None:
        """Follow until cancelled; what breaks is tried again."""
        while True:
            try:
                async with connected(context, "SUB", self.address.events) as socket:
                    await self._follow(context, socket)
            except (NotEvents, OSError) as error:
                self._failed(str(error))
            except Exception as error:
                # A fault in following one engine must not end the following of all others.
                log.exception("kv_events_fault", replica=self.replica.id)
                self._failed(f"{type(error).__name__}, see the log")
            await asyncio.sleep(AGAIN_S)

    def _failed(self, why: str) -> None:
        self.error = f"{self.address.events}: {why}"
        log.warning("kv_events_failed", replica=self.replica.id, why=self.error)
        self.view.forget()
        self.last = None

    async def _follow(self, context: zmq.asyncio.Context, socket: Any) -> None:
        await self._catch_up(context, 0)
        turn = 0
        while True:
            frames = await socket.recv_multipart()
            if len(frames) != 3:
                raise NotEvents(f"a message of {len(frames)} frames, not 3")
            await self._arrived(context, sequence_of(frames[1]), read_batch(frames[2]))
            turn = (turn + 1) % MESSAGES_A_TURN
            if not turn:
                await asyncio.sleep(0)

    async def _arrived(self, context: zmq.asyncio.Context, number: int, batch: Batch) -> None:
        self.heed_restart()
        how = judge_arrival(number, batch.at, last=self.last, last_at=self.last_at)
        if how == "again":
            return
        if how == "restart":
            self._restarted()
            how = "next" if number == 0 else "gap"
        if how == "gap":
            await self._catch_up(context, self.last or 0)
            how = judge_arrival(number, batch.at, last=self.last, last_at=self.last_at)
            if how == "again":
                return
            if how != "next":
                self._lost(number)
        self._take(number, batch)

    def heed_restart(self) -> None:
        """Take over that prober or scraper saw another process, if it is news.

        Before its first message too: what is learned elsewhere must not be believed of it for what
        the process before it held.
        """
        noted_at = self.replica.restarted_at
        if noted_at == self.seen_restart:
            return
        self.seen_restart = noted_at
        now = time.monotonic()
        if self.restarted_at is not None and now - self.restarted_at < SAME_RESTART_S:
            self.view.restate(now)  # the profile was emptied once more
        else:
            self.view.forget()
            self.last = None

    def _restarted(self) -> None:
        """Forget the process that is gone: numbers start anew."""
        log.info("kv_events_restarted", replica=self.replica.id)
        self.restarted_at = time.monotonic()
        self.view.forget()
        self.replica.profile.clear()
        self.last = None

    def _lost(self, number: int) -> None:
        """Go back to guessing: what was dropped meanwhile is not known."""
        self.lost += self.last is not None
        self.view.forget()
        log.warning("kv_events_lost", replica=self.replica.id, after=self.last, before=number)

    def _take(self, number: int, batch: Batch) -> None:
        now = self.heard_at = time.monotonic()
        self.last, self.last_at, self.error = number, batch.at, ""
        for event in batch.events:
            self.view.apply(event, now)

    async def _catch_up(self, context: zmq.asyncio.Context, start: int) -> None:
        """Ask for all messages from `start` on; what comes in unbroken order is taken over.

        The last one that is known is asked for again: if another has its number, the engine
        counts anew and has passed it already, and all of its messages are asked for.
        """
        if not self.address.replay:
            return
        if await self._replay(context, start):
            self._restarted()
            await self._replay(context, 0)

    async def _replay(self, context: zmq.asyncio.Context, start: int) -> bool:
        """Take over what is repeated; true as soon as it is of another process."""
        try:
            async with (
                asyncio.timeout(REPLAY_LIMIT_S),
                connected(context, "DEALER", self.address.replay) as socket,
            ):
                await socket.send_multipart([b"", start.to_bytes(8, "big")])
                while True:
                    frames = await socket.recv_multipart()
                    if len(frames) < 3 or frames[-2] == END_OF_REPLAY:
                        return False
                    number, batch = sequence_of(frames[-2]), read_batch(frames[-1])
                    how = judge_arrival(number, batch.at, last=self.last, last_at=self.last_at)
                    if how == "restart":
                        return True
                    if how == "next" or self.last is None:
                        self._take(number, batch)
        except TimeoutError:
            log.warning("kv_replay_failed", replica=self.replica.id, why="no answer in time")
        return False


@dataclass
class KvListener:
    """Keeps a follower for each replica whose pool says where its engine publishes."""

    fleet: Fleet
    followers: dict[Replica, Follower] = field(default_factory=dict)
    _contents: dict[str, KvContents] = field(default_factory=dict)
    _tasks: dict[Replica, asyncio.Task[None]] = field(default_factory=dict)
    _context: Any = None

    async def run(self) -> None:
        """Follow all that are to be followed until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    self._look(tasks)
                    now = time.monotonic()
                    for follower in self.followers.values():
                        follower.heed_restart()
                        follower.view.most_tokens = follower.replica.kv_tokens()
                        follower.view.settle(now)
                        follower.replica.cache.events = follower.words(now)
                    await asyncio.sleep(next_tick_s(now, TICK_S))
        finally:
            if self._context is not None:
                self._context.destroy(linger=0)

    def _look(self, tasks: asyncio.TaskGroup) -> None:
        """Begin and end followers as the table says."""
        wanted = self._wanted()
        for replica, follower in list(self.followers.items()):
            if wanted.get(replica) != follower.address:
                self._end(replica)
        for replica, address in wanted.items():
            if replica not in self.followers:
                self._begin(replica, address, tasks)

    def _wanted(self) -> dict[Replica, KvAddress]:
        found = {}
        for replica in self.fleet.replicas.values():
            if replica.settings.kv_events:
                found[replica] = kv_address(replica.settings, replica.endpoint.url)
        return found

    def _begin(self, replica: Replica, address: KvAddress, tasks: asyncio.TaskGroup) -> None:
        context = self._zmq()
        if context is None:
            replica.cache.events = NO_PACKAGE
            return
        contents = self._contents.setdefault(replica.pool, KvContents())
        block_bytes = self.fleet.wire_table.block_bytes if self.fleet.wire_table else 256
        view = KvView(replica.profile, contents, block_bytes=block_bytes)
        follower = self.followers[replica] = Follower(replica, address, view)
        follower.seen_restart = replica.restarted_at
        replica.cache.view = view
        self._tasks[replica] = tasks.create_task(follower.run(context))

    def _end(self, replica: Replica) -> None:
        follower = self.followers.pop(replica)
        self._tasks.pop(replica).cancel()
        follower.view.leave()
        replica.cache.view, replica.cache.events = None, ""
        if not any(r.pool == replica.pool for r in self.followers):
            self._contents.pop(replica.pool, None)

    def _zmq(self) -> Any:
        """Give the one context; None where the package is missing."""
        if self._context is None:
            try:
                import zmq.asyncio
            except ImportError:
                return None
            self._context = zmq.asyncio.Context()
        return self._context


@asynccontextmanager
async def connected(
    context: zmq.asyncio.Context, kind: Literal["SUB", "DEALER"], address: str
) -> AsyncIterator[Any]:
    """Give a socket to `address`; libzmq makes its connection, and makes it again."""
    import zmq

    socket = context.socket(getattr(zmq, kind))
    try:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVHWM, QUEUED_MESSAGES)
        if address.startswith("tcp://["):
            socket.set(zmq.IPV6, 1)
        if kind == "SUB":
            socket.set(zmq.SUBSCRIBE, b"")
        socket.connect(address)
        yield socket
    except zmq.ZMQError as error:
        raise OSError(str(error)) from None
    finally:
        socket.close()
