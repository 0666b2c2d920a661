"""A pool grows and shrinks under load, by engines that agents run; no stream is cut."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import httpx
import pytest

from tests.e2e.stack import Stack, eventually
from tests.e2e.streams import Streams

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
POOL, MODEL = "growing", "mistral-7b-instruct"


def replicas(operator: httpx.Client, state: str = "") -> list[dict[str, Any]]:
    found = operator.get(f"/api/v1/replicas/?pool={POOL}&page_size=100").json()["results"]
    return [r for r in found if r["executor"] == "agent" and state in ("", r["state"])]


def listens(url: str) -> bool:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=1),
    ):
        return True
    return False


def cut(streams: Streams) -> list[str]:
    """Give the failures but for refusals of a full queue, which had not begun."""
    return [f for f in streams.failures if not f.startswith("HTTP/1.1 429")]


def set_policy(operator: httpx.Client, **given: Any) -> None:
    answer = operator.patch(f"/api/v1/scaling-policies/{POOL}/", json=given | {"reason": "e2e"})
    assert answer.status_code == 200, answer.text


def test_load_makes_a_pool_grow_and_shrink_by_draining_and_no_stream_is_cut(stack: Stack) -> None:
    key = stack.status()["api_key"]
    port = stack.ports.traffic(1)
    with stack.operator() as operator:
        set_policy(operator, scale_down_after_s=5.0, cooldown_s=2.0, max_replicas=3)
        eventually(lambda: replicas(operator, "ready"), limit_s=90)
        with Streams(port, key, MODEL, clients=2) as few:
            with Streams(port, key, MODEL, clients=24) as many:
                grown = eventually(
                    lambda: len(rows := replicas(operator, "ready")) >= 2 and rows, limit_s=120
                )
                assert all(listens(r["url"]) for r in grown)
            shrunk = eventually(
                lambda: (len(rows := replicas(operator, "ready")) == 1
                         and len(replicas(operator, "draining")) == 0 and rows),
                limit_s=150,
            )  # fmt: skip
        gone = [r for r in grown if r["id"] not in {s["id"] for s in shrunk}]
        eventually(lambda: not any(listens(r["url"]) for r in gone), limit_s=60)
        decisions = operator.get(f"/api/v1/scaling-decisions/?pool={POOL}").json()["results"]
        set_policy(operator, scale_down_after_s=60.0, cooldown_s=15.0, max_replicas=4)
    assert cut(many) == []
    assert cut(few) == []
    assert few.finished > 0
    codes = [d["code"] for d in reversed(decisions)]
    assert "up" in codes
    assert "down" in codes[codes.index("up") :]
    up = next(d for d in decisions if d["code"] == "up")
    assert "queue wait P95" in up["reason"]


def test_an_engine_outlives_its_agent_and_is_adopted(stack: Stack) -> None:
    with stack.operator() as operator:
        (row, *_) = eventually(lambda: replicas(operator, "ready"), limit_s=90)
        name = f"agent-{row['node'].removeprefix('node-')}"
        adopted = len([e for e in stack.log(name) if e["event"] == "engine_adopted"])
        stack.kill(name)
        assert listens(row["url"])
        eventually(lambda: stack.health()[name] == "ok")
        eventually(
            lambda: len([e for e in stack.log(name) if e["event"] == "engine_adopted"]) > adopted
        )
        assert listens(row["url"])
        now = operator.get(f"/api/v1/replicas/{row['id']}/").json()
        assert now["state"] in ("ready", "ejected")  # nobody heard its agent for a moment
