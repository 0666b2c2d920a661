"""A signing key of the test's own, fake agents, a real Redis, and several workers at once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from controlplane import wake
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Node
from controlplane.routing import services, signing
from controlplane.telemetry import recent
from tests.factories import WHY
from tests.fakes.agent import FakeAgent
from tests.redis_server import RedisServer


@pytest.fixture(autouse=True)
def _own_key_and_fresh_circuits(settings: Any, tmp_path: Path) -> Iterator[None]:
    settings.SIGNING_KEY_FILE = tmp_path / "signing-key.pem"
    settings.PUBLISH_DEBOUNCE_S = 0.001
    signing.make_key_file(settings.SIGNING_KEY_FILE)
    wake.health.open_until = 0.0
    wake._drop_connections()  # of other folders' tests, to other brokers
    recent._store = None
    yield
    recent._store = None
    wake._drop_connections()


@pytest.fixture
def fake_agent(db: None) -> Iterator[Callable[..., FakeAgent]]:
    """Start and register agents by name."""
    with ExitStack() as stack:

        def start(name: str = "node-1") -> FakeAgent:
            fake = stack.enter_context(FakeAgent(name).running())
            register(fake)
            return fake

        yield start


def register(fake: FakeAgent) -> None:
    """Register an agent, for the first time or again."""
    if not Node.objects.filter(name=fake.name).exists():
        fleet.create_node(name=fake.name, **WHY)
    _, token = fleet.issue_registration_token(node=fake.name, **WHY)
    fake.accept(services.register_agent(request=fake.register_request(token)))


def deliver_all(*fakes: FakeAgent) -> None:
    """Do what the delivery tasks of the newest epoch do."""
    from controlplane.fleet.models import Agent
    from controlplane.routing.selectors import current_epoch

    for fake in fakes:
        agent = Agent.objects.get(public_id=fake.agent)
        services.deliver_table(agent_id=agent.pk, epoch=current_epoch())


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run calls in threads of their own, released together; give results and exceptions."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture
def redis_server(tmp_path: Path, settings: Any) -> Iterator[RedisServer]:
    """A Redis of the test's own, as broker and recent store."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not on PATH")
    server = RedisServer(tmp_path)
    settings.REDIS_URL = settings.CELERY_BROKER_URL = server.url
    try:
        yield server
    finally:
        server.kill()
