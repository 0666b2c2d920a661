"""Agents that tell one another directly: over real sockets, believed by their seals alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import msgspec
import pytest

from routing_agent import wire
from routing_agent.control.peer_port import PeerPort
from routing_agent.control.peers import (
    IDLE_PAUSE_S,
    MOST_BYTES,
    PEER_LIFE_S,
    SEAL_BYTES,
    Peers,
    seal,
)
from routing_agent.core.attention import TICK_S
from routing_agent.core.fleet import Fleet
from routing_agent.core.loads import LEAST_PAUSE_S, Loads
from tests.agent.core import build
from tests.agent.core.build import NOW
from tests.agent.waiting import until

LOCAL = "127.0.0.1"


def a_fleet(size: int = 2, policy: str = "expected_ttft") -> Fleet:
    return build.fleet(build.pool(size=size, settings=build.settings(policy=policy)))


def address(peers: Peers, port: int = 9) -> wire.PeerAddress:
    return wire.PeerAddress(host=LOCAL, port=port, key=peers.key)


def told_of(peers: Peers, port: int = 9) -> tuple[wire.AgentPlaced, ...]:
    """Give what the control plane tells of an agent, as it comes over the wire."""
    told = wire.AgentPlaced(agent=peers.agent, number=1, peer=address(peers, port))
    reply = wire.ReportReply(server_time=1.0, lineage="l", epoch=1, others=(told,))
    return msgspec.json.decode(msgspec.json.encode(reply), type=wire.ReportReply).others


def send(fleet: Fleet, replica: str = "p0", tokens: int = 1000) -> None:
    fleet.replicas[replica].begin(tokens + 256, NOW)
    fleet.replicas[replica].prefill.place(tokens, NOW)


def heard(fleet: Fleet, replica: str = "p0") -> tuple[int, float]:
    hearsay = fleet.replicas[replica].hearsay
    return hearsay.told_requests, hearsay.told_tokens


@contextlib.asynccontextmanager
async def open_port(peers: Peers) -> AsyncIterator[int]:
    port = PeerPort(peers)
    bound = await port.open(LOCAL, 0)
    running = asyncio.create_task(port.run())
    try:
        yield bound
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        port.close()


async def test_agents_hear_of_each_others_load_and_of_its_end(caplog) -> None:
    one, other = Peers(a_fleet(), "agt-1"), Peers(a_fleet(), "agt-2")
    passed_on: list[tuple[str, str, Loads]] = []
    other.on_loads = lambda *loads: passed_on.append(loads)
    async with open_port(one) as ours, open_port(other) as theirs:
        one.learn(told_of(other, theirs), NOW)
        other.learn(told_of(one, ours), NOW)
        nowhere = wire.PeerAddress(host="no.such.host.invalid", port=9, key=bytes(32))
        one.learn((wire.AgentPlaced(agent="agt-3", number=1, peer=nowhere),), NOW)
        send(one.fleet)
        await until(lambda: heard(other.fleet)[1] > 0, within_s=60)
        send(other.fleet, "p1", 500)
        await until(lambda: heard(one.fleet, "p1")[0] == 1, within_s=60)
        one.fleet.replicas["p0"].release(1256)
        one.fleet.replicas["p0"].prefill.clear()
        await until(lambda: heard(other.fleet) == (0, 0.0), within_s=60)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(b"good day", (LOCAL, theirs))
            await until(lambda: other.counts["unreadable"] == 1, within_s=60)
    assert passed_on[0][:2] == ("agt-1", "p")
    state = other.state(NOW)
    assert [agent["agent"] for agent in state["agents"]] == ["agt-1"]
    assert "peer_not_found" in caplog.text
    assert caplog.text.count("no.such.host.invalid") == 1


async def test_a_port_that_is_taken_costs_the_port_and_nothing_else(caplog) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((LOCAL, 0))
        port = PeerPort(Peers(a_fleet(), "agt-1"))
        assert await port.open(LOCAL, taken.getsockname()[1]) == 0
        port.close()
    assert "peer_port_closed" in caplog.text


def pair() -> tuple[Peers, Peers]:
    one, other = Peers(a_fleet(), "agt-1"), Peers(a_fleet(), "agt-2")
    one.learn(told_of(other), NOW)
    other.learn(told_of(one), NOW)
    return one, other


def test_only_sealed_news_is_taken_and_each_once() -> None:
    one, other = pair()
    send(one.fleet)
    (first,) = one.datagrams(NOW)
    (second,) = one.datagrams(NOW + 1)
    assert other.take(second, NOW)
    assert not other.take(second, NOW)
    assert not other.take(first, NOW), "overtaken"
    changed = bytearray(second)
    changed[-1] ^= 1
    assert not other.take(bytes(changed), NOW)
    assert not Peers(a_fleet(), "agt-3").take(second, NOW)
    head, body = second[:17], b"\x91\x92\xa1p\x81\xa2p0\x92\xff\x00"  # -1 requests
    head = head[:9] + (99).to_bytes(8, "big")
    assert not other.take(head + seal(one.key, head + body) + body, NOW)
    assert not other.take(first[: 17 + SEAL_BYTES - 1], NOW)
    assert not other.take(b"\x02" + second[1:], NOW), "another version"
    assert other.counts == {"heard": 1, "repeated": 2, "unsealed": 1, "unreadable": 3}


def test_another_process_of_an_agent_is_believed_by_its_own_key() -> None:
    one, other = pair()
    send(one.fleet)
    before = one.datagrams(NOW)[0]
    assert other.take(before, NOW)
    restarted = Peers(one.fleet, "agt-1")
    assert not other.take(restarted.datagrams(NOW)[0], NOW), "its key was not told yet"
    other.learn(told_of(restarted), NOW)
    assert other.take(restarted.datagrams(NOW + 1)[0], NOW)
    assert not other.take(before, NOW)
    assert repr(one.key) not in f"{one!r}{told_of(one)!r}", "keys are for no log"


def test_who_is_no_longer_heard_of_is_forgotten() -> None:
    one, other = pair()
    send(one.fleet)
    other.take(one.datagrams(NOW)[0], NOW + 20)
    other.learn((), NOW + PEER_LIFE_S + 10)
    assert [peer.agent for peer in other.known] == ["agt-1"], "it tells, whoever tells of it"
    other.learn((), NOW + PEER_LIFE_S + 21)
    assert other.known == ()
    assert other.pause_s(NOW) == IDLE_PAUSE_S


def test_while_nothing_is_under_way_nobody_is_woken_to_tell_it() -> None:
    one, _ = pair()
    assert one.datagrams(NOW) == []
    assert TICK_S / 4 <= one.pause_s(NOW) <= 1.25 * TICK_S
    send(one.fleet)
    assert len(one.datagrams(NOW)) == 1
    assert one.pause_s(NOW) == LEAST_PAUSE_S


def test_much_is_told_in_datagrams_that_are_not_cut_on_the_way() -> None:
    one, other = Peers(a_fleet(200), "agt-1"), Peers(a_fleet(200), "agt-2")
    other.learn(told_of(one), NOW)
    for name in one.fleet.replicas:
        send(one.fleet, name)
    datagrams = one.datagrams(NOW)
    assert len(datagrams) > 1
    assert max(map(len, datagrams)) <= MOST_BYTES
    assert all(other.take(datagram, NOW) for datagram in datagrams)
    assert all(heard(other.fleet, name) == (1, 1000.0) for name in other.fleet.replicas)


@pytest.mark.parametrize("fleet", [a_fleet(policy="least_tokens"), a_fleet(size=1)])
def test_nothing_is_told_of_pools_that_do_not_ask(fleet: Fleet) -> None:
    one = Peers(fleet, "agt-1")
    send(fleet)
    assert one.datagrams(NOW) == []
