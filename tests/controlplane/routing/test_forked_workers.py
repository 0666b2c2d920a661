"""Workers are forked from one process: each talks to agents and to the broker on its own (R61)."""

from __future__ import annotations

import multiprocessing

import msgspec
import pytest
import redis

from controlplane import wake
from controlplane.routing.push import EXPLAIN_PATH, call_agent
from routing_agent import wire

pytestmark = [pytest.mark.redis, pytest.mark.django_db, pytest.mark.one_database]


def ask(call: tuple[str, str]) -> str:
    """Ask an agent about a model and wake a task; gives what does not fit the question."""
    admin_url, model = call
    body = msgspec.json.encode(wire.ExplainRequest(model=model))
    answer = call_agent(admin_url, method="POST", path=EXPLAIN_PATH, body=body, limit_s=60)
    said = msgspec.json.decode(answer.body, type=wire.Explanation).reason
    wake.health.open_until = 0.0  # a busy machine may miss the limit of 0.2 s: it is tried again
    while not wake.wake("routing.deliver", model):
        wake.health.open_until = 0.0
    return "" if said == f"asked for {model}" else f"{model}: {said}"


def test_forked_workers_mix_up_nothing_that_was_open_before_the_fork(redis_server, fake_agent):
    asked = [fake_agent(name).admin_url for name in ("node-1", "node-2")]
    assert ask((asked[0], "before")) == ""  # the parent has connections and a key at hand
    fork = multiprocessing.get_context("fork")
    for workers, tasks in ((1, 50), (4, 200)):
        with fork.Pool(workers) as pool:
            calls = [(asked[n % 2], f"m{workers}-{n}") for n in range(tasks)]
            assert set(pool.map(ask, calls, chunksize=1)) == {""}
    with redis.Redis.from_url(redis_server.url) as broker:
        sent = [
            msgspec.json.decode(m)["headers"]["argsrepr"] for m in broker.lrange("celery", 0, -1)
        ]
    assert len(set(sent)) == 251
