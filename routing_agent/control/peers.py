"""What agents tell one another directly: sealed datagrams of what each has under way.

Reports tell who the others are, where they hear and the key that seals their datagrams (see
`wire.PeerAddress`). All of it is advice: what is lost, late or refused costs a choice that could
have been better, no more. Nothing here does input or output: see `control.peer_port`.

A datagram is a version, a sender's tag and number, a seal over these and the rest, and the loads by
pool and replica as MessagePack. A number is accepted once, and none below it: played back, a
datagram says nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from routing_agent.core.attention import next_tick_s
from routing_agent.core.fleet import Fleet, PoolState
from routing_agent.core.loads import COUNTED_BY, Loads, LoadTeller, hear, pause_s
from routing_agent.wire import AgentPlaced, PeerAddress

VERSION: Final = 1
KEY_BYTES: Final = 32
SEAL_BYTES: Final = 16
# Below the smallest MTU that is usual (1,280 with IPv6), so that none is sent in pieces.
MOST_BYTES: Final = 1200
# An agent that neither tells nor is told of by the control plane any more is forgotten.
PEER_LIFE_S: Final = 30.0
# While there is nobody to tell.
IDLE_PAUSE_S: Final = 1.0

_HEAD: Final = Struct("!B8sQ")
_ENTRY_BYTES: Final = 16  # of an entry, beside its replica's name
_Tokens = Annotated[float, Meta(ge=0, le=1e12)]
_Requests = Annotated[int, Meta(ge=0, le=1_000_000)]
_Told = list[tuple[str, dict[str, tuple[_Requests, _Tokens]]]]
_DECODER: Final = msgspec.msgpack.Decoder(_Told)
_ENCODER: Final = msgspec.msgpack.Encoder()

# An agent, a pool, and what that agent has there.
OnLoads = Callable[[str, str, Loads], None]


@dataclass(slots=True)
class Peer:
    """Another agent, as its control plane and its datagrams tell of it."""

    agent: str
    address: PeerAddress
    learned_at: float  # monotonic
    heard_at: float | None = None
    newest: int = 0  # number of its newest datagram


@dataclass
class Peers:
    """One agent's side of it."""

    fleet: Fleet
    agent: str = ""
    on_loads: OnLoads | None = None  # set where other processes choose
    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES))
    counts: Counter[str] = field(default_factory=Counter)  # "told", "heard", or why refused
    _peers: dict[bytes, Peer] = field(default_factory=dict)  # by tag
    _tellers: dict[str, LoadTeller] = field(default_factory=dict)  # by pool
    _number: int = 0

    def __repr__(self) -> str:
        return f"Peers(agent={self.agent!r}, peers={len(self._peers)})"

    @property
    def known(self) -> tuple[Peer, ...]:
        """The agents to tell."""
        return tuple(self._peers.values())

    def learn(self, others: Iterable[AgentPlaced], now: float) -> None:
        """Take in who the other agents are, from the answer to a report.

        Not called while the control plane is away: those who are known go on telling each other.
        """
        for other in others:
            if other.peer is not None:
                self._learn(other.agent, other.peer, now)
        gone = [tag for tag, peer in self._peers.items() if now - _last(peer) > PEER_LIFE_S]
        for tag in gone:
            del self._peers[tag]

    def _learn(self, agent: str, address: PeerAddress, now: float) -> None:
        tag = tag_of(agent)
        peer = self._peers.get(tag)
        if peer is None or peer.agent != agent or peer.address.key != address.key:
            peer = self._peers[tag] = Peer(agent, address, now)  # new, or another process
        peer.address, peer.learned_at = address, now

    def pause_s(self, now: float) -> float:
        """Give how long to wait before `datagrams` is asked again.

        While nothing is under way, until the tick of everything else: it wakes nobody by itself,
        and the first request after a silence is told a tenth of a second later at most.
        """
        if not self._peers:
            return IDLE_PAUSE_S
        if all(teller.is_silent for teller in self._tellers.values()):
            return next_tick_s(now)
        return pause_s(len(self._peers), sum(len(pool.replicas) for pool in self._pools()))

    def datagrams(self, now: float) -> list[bytes]:
        """Give what to send to every peer now; nothing if nothing has changed."""
        pools = list(self._pools())
        names = {pool.pool.name for pool in pools}
        self._tellers = {name: one for name, one in self._tellers.items() if name in names}
        told = [(pool.pool.name, self._teller(pool).take(pool, now)) for pool in pools]
        return [self._sealed(body) for body in _bodies(told)]

    def _pools(self) -> Iterator[PoolState]:
        """Give the pools whose policy asks what others have waiting."""
        for pool in self.fleet.pools.values():
            if pool.uses_prefixes and pool.settings.policy in COUNTED_BY:
                yield pool

    def _teller(self, pool: PoolState) -> LoadTeller:
        return self._tellers.setdefault(pool.pool.name, LoadTeller())

    def _sealed(self, body: bytes) -> bytes:
        self._number += 1
        head = _HEAD.pack(VERSION, tag_of(self.agent), self._number)
        return head + seal(self.key, head + body) + body

    def take(self, datagram: bytes, now: float) -> bool:
        """Take in what another agent told; false if it is refused."""
        refusal = self._take(datagram, now)
        self.counts[refusal or "heard"] += 1
        return not refusal

    def _take(self, datagram: bytes, now: float) -> str:
        body_at = _HEAD.size + SEAL_BYTES
        if len(datagram) < body_at or datagram[0] != VERSION:
            return "unreadable"
        _, tag, number = _HEAD.unpack_from(datagram)
        peer = self._peers.get(tag)
        if peer is None:
            return "unknown"
        head, body = datagram[: _HEAD.size], datagram[body_at:]
        sealed = seal(peer.address.key, head + body)
        if not hmac.compare_digest(sealed, datagram[_HEAD.size : body_at]):
            return "unsealed"
        if number <= peer.newest:
            return "repeated"
        try:
            told = _DECODER.decode(body)
        except msgspec.MsgspecError:
            return "unreadable"
        peer.newest, peer.heard_at = number, now
        for pool, loads in told:
            self._hear(peer.agent, pool, loads, now)
        return ""

    def _hear(self, agent: str, pool: str, loads: Loads, now: float) -> None:
        here = self.fleet.pools.get(pool)
        if here is not None:
            hear(here, agent, loads, now)
            if self.on_loads is not None:
                self.on_loads(agent, pool, loads)

    def state(self, now: float) -> dict[str, object]:
        """Describe who is told and heard, for people."""
        return {
            "agents": [
                {
                    "agent": peer.agent,
                    "address": f"{peer.address.host}:{peer.address.port}",
                    "heard_age_s": None if peer.heard_at is None else now - peer.heard_at,
                }
                for peer in self._peers.values()
            ],
            "datagrams": dict(self.counts),
        }


def tag_of(agent: str) -> bytes:
    """Give what stands for an agent's name in a datagram."""
    return hashlib.blake2b(agent.encode(), digest_size=8).digest()


def seal(key: bytes, content: bytes) -> bytes:
    """Give the seal of a datagram: BLAKE2b under its sender's key."""
    return hashlib.blake2b(
        content, key=key, digest_size=SEAL_BYTES, person=b"signalbox-load"
    ).digest()


def _last(peer: Peer) -> float:
    return peer.learned_at if peer.heard_at is None else max(peer.learned_at, peer.heard_at)


def _bodies(told: Iterable[tuple[str, Loads]]) -> Iterator[bytes]:
    """Cut what is to be told into bodies that fit a datagram each."""
    room = MOST_BYTES - _HEAD.size - SEAL_BYTES
    for pool, loads in told:
        part: Loads = {}
        size = start = len(pool.encode()) + _ENTRY_BYTES
        for replica, load in loads.items():
            more = len(replica.encode()) + _ENTRY_BYTES
            if part and size + more > room:
                yield _ENCODER.encode([(pool, part)])
                part, size = {}, start
            part[replica] = load
            size += more
        if part:
            yield _ENCODER.encode([(pool, part)])
