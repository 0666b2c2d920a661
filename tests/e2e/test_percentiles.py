"""Percentiles of pages and roll-ups are those of the requests themselves, within 5 %."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from controlplane.console import quantities
from controlplane.fleet import services as fleet
from controlplane.fleet.views import charts
from controlplane.routing import services as routing
from controlplane.routing import signing
from controlplane.telemetry import recent, services, source
from controlplane.telemetry.snapshots import SeriesSet, Window
from controlplane.usage.models import RequestRecord
from tests.controlplane.staff import signed_in
from tests.e2e.stack import eventually
from tests.factories import WHY, make_key, make_node, make_pool, make_replica, make_tenant
from tests.ports import free_port
from tests.redis_server import RedisServer

ROOT = Path(__file__).parents[2]
KEY = "sbx-percentiles"
REQUESTS = 240
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.redis,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.django_db(transaction=True),
]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Start `python -m routing_agent …`; gives its log."""
    with ExitStack() as stack:

        def run(*words: str) -> Path:
            log = tmp_path / f"{words[0]}-{free_port()}.log"
            process = subprocess.Popen(
                [sys.executable, "-m", "routing_agent", *words],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(log.open("wb")),
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait, 20)
            stack.callback(process.kill)
            return log

        yield run


@pytest.fixture
def redis_server(tmp_path: Path, settings: Any) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not on PATH")
    server = RedisServer(tmp_path)
    settings.REDIS_URL = server.url
    settings.REDIS_TIMEOUT_S = 5.0  # a busy machine is no outage
    settings.SIGNING_KEY_FILE = tmp_path / "signing-key.pem"
    signing.make_key_file(settings.SIGNING_KEY_FILE)
    recent._store = None
    source._points.clear()
    charts._bodies.clear()
    yield server
    recent._store = None
    server.kill()


@pytest.fixture
def agent(live_server: Any, redis_server: RedisServer, start: Any, tmp_path: Path) -> str:
    """A real agent under this control plane, before two simulated engines; gives its address."""
    pool = make_pool()
    for _ in range(2):
        port = free_port()
        start("simulate-engine", "--port", str(port), "--model", "m", "--speed", "4")
        make_replica(pool, url=f"http://127.0.0.1:{port}", served_model="m")
    make_key(make_tenant(), sha256=hashlib.sha256(KEY.encode()).hexdigest())
    make_node("node-a")
    routing.republish(**WHY)
    token = tmp_path / "token"
    token.write_text(fleet.issue_registration_token(node="node-a", **WHY)[1])
    log = start(
        *("agent", "--control-plane", live_server.url, "--token-file", str(token)),
        *("--name", "node-a", "--state-dir", str(tmp_path / "state"), "--sample-ratio", "1"),
        *("--port", "0", "--admin-port", "0"),
    )

    def listens() -> dict[str, Any] | None:
        told = [json.loads(x) for x in log.read_text().splitlines() if x.startswith("{")]
        return next((t for t in told if t["event"] == "agent_listens"), None)

    told = eventually(listens)
    eventually(lambda: httpx.get(f"http://{told['admin']}/readyz").status_code == 200)
    url = f"http://{told['traffic']}"
    # Another process's replica is healthy once probed: nothing to wait on but an answer.
    eventually(lambda: ask(url, 1, "first") == 200)
    return url


def ask(url: str, max_tokens: int, prompt: str) -> int:
    """Stream one chat to its end."""
    body = {
        "model": "m",
        "stream": True,
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": prompt}],
    }
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.post(
        f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60
    ).status_code


def send(url: str) -> None:
    """Send chats of very different lengths, twelve at a time."""
    dice = random.Random(7)
    sizes = [(dice.randrange(2, 60), dice.randrange(5, 4000)) for _ in range(REQUESTS - 1)]
    with ThreadPoolExecutor(12) as threads:
        answers = threads.map(lambda s: ask(url, s[0], f"{s[1]} " + "word " * s[1]), sizes)
        assert set(answers) == {200}


def exact(values: Sequence[float], share: float) -> float:
    """Give the value that a share of all does not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def whole(step_s: int, now: float) -> Window:
    """A window of one point that covers everything, made of stored steps of this length."""
    length_s = {5: 900, 60: 1800, 3600: 6 * 3600}[step_s]
    end_s = (int(now) // step_s + 1) * step_s
    return Window(end_s=end_s, step_s=length_s, steps=1, span_s=length_s, base_s=step_s)


def test_percentiles_equal_those_of_the_raw_records_within_five_percent(agent):
    send(agent)
    eventually(lambda: RequestRecord.objects.count() >= REQUESTS)
    lives = [r.life for r in RequestRecord.objects.filter(status=200)]
    raw = {
        "ttft": [x["ttft_s"] for x in lives],
        "e2e": [x["e2e_s"] for x in lives],
        "tpot": [x["tpot_s"] for x in lives if x.get("tpot_s")],
    }
    now = time.time()
    assert_equal(raw, whole(5, now), "recent store")
    services.roll_up(now + 3 * 3600)  # closes this minute and this hour
    source._points.clear()
    assert_equal(raw, whole(3600, now + 3600), "hour roll-ups")
    page = signed_in("viewer").get("/pools/chat/").content.decode()
    assert quantities.latency(summary(now).ttft_p95_s) in page
    assert summary(now).ttft_p95_s == pytest.approx(exact(raw["ttft"], 0.95), rel=0.05)
    assert summary(now).samples == len(lives)


def summary(now: float) -> Any:
    return source.pool_summaries(["chat"])["chat"]


def assert_equal(raw: dict[str, list[float]], window: Window, store: str) -> None:
    """Compare all percentiles of all latencies with those of the records themselves."""
    for chart, values in raw.items():
        found = source.pool_chart("chat", chart, window)
        assert isinstance(found, SeriesSet), (chart, found)
        assert found.source == store
        for name, share in SHARES.items():
            told, true = found.series[name][-1], exact(values, share)
            assert told == pytest.approx(true, rel=0.05), (store, chart, name)
