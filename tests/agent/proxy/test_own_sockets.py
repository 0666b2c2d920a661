"""An agent that is out of sockets blames itself, not the engines."""

from __future__ import annotations

import gc
import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from routing_agent.engine.probe import Prober
from routing_agent.http_client import HttpClient
from routing_agent.sockets import raise_open_file_limit
from tests.agent.proxy.client import RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import obliging


@contextmanager
def no_more_sockets() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # what earlier tests left open must not become free in the middle
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_requests_without_a_socket_are_503_and_held_against_no_engine(rig: Rig) -> None:
    """The client is told whose fault it is; as soon as there are sockets all is well."""
    await rig.start(obliging(), obliging())
    client = await RawClient.open(rig.port)
    await until(lambda: rig.proxy.open_connections == 1)
    with no_more_sockets():
        for _ in range(10):
            client.post(chat())
            reply = await client.reply()
            assert (reply.status, reply.error["code"]) == (503, "no_replica")
            assert "This router has no socket left" in reply.error["message"]
    assert rig.calls == [0, 0]
    assert [rig.replica(i).errors_total for i in range(2)] == [0, 0]
    assert {rig.replica(i).breaker.state for i in range(2)} == {"closed"}
    client.post(chat())
    assert (await client.reply()).status == 200


async def test_probes_without_a_socket_tell_nothing(rig: Rig) -> None:
    """No engine is called dead because we cannot ask it."""
    await rig.start()
    client = HttpClient()
    prober = Prober(rig.fleet, client, random.Random(1))
    with no_more_sockets():
        for _ in range(5):
            await prober.visit(rig.replica())
    assert (rig.replica().health, rig.replica().probe_streak) == ("unknown", 0)
    await client.close()


def test_the_agent_takes_all_the_open_files_it_may_have() -> None:
    """Soft limits of 1,024 are common, hard ones of that size are not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
        assert raise_open_file_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
