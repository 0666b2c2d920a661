"""An adapter from its upload to its answers and its end: a real agent and a simulated engine.

The control plane is this process, its loops run by hand; agent and engine are processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from django.db import connections

from controlplane.asgi import application
from controlplane.catalog import uploads
from controlplane.catalog.models import Adapter
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent, Replica
from controlplane.routing import services
from controlplane.routing.selectors import current_epoch
from controlplane.tenants import services as tenants
from controlplane.usage.models import UsageHour
from tests import adapters as made
from tests.factories import WHY, make_pool, make_tenant
from tests.ports import free_port

pytestmark = [
    pytest.mark.one_database,
    pytest.mark.django_db(transaction=True),
    pytest.mark.redis,
    pytest.mark.slow,
]
ROOT = Path(__file__).parents[3]


class Live:
    """The control plane behind HTTP, an agent, an engine, and two tenants with keys."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.console, self.engine, self.traffic, admin = (
            f"http://127.0.0.1:{free_port()}" for _ in range(4)
        )
        self._serve()
        self._run("simulate-engine", "--port", self._port(self.engine), "--model", "m",
                  "--speed", "50")  # fmt: skip
        fleet.create_node(name="n1", **WHY)
        _, token = fleet.issue_registration_token(node="n1", **WHY)
        (folder / "token").write_text(token)
        self._run("agent", "--control-plane", self.console, "--name", "n1",
                  "--token-file", str(folder / "token"), "--state-dir", str(folder / "agent"),
                  "--port", self._port(self.traffic),
                  "--admin-port", self._port(admin))  # fmt: skip
        pool = make_pool("chat", settings={"probe_interval_s": 0.2})
        fleet.register_replica(pool=pool.slug, url=self.engine, node="n1", **WHY)
        self.keys = {}
        for slug in ("acme", "globex"):
            make_tenant(slug)
            self.keys[slug] = tenants.issue_key(tenant=slug, name="k", **WHY).plaintext
        _, self.token = tenants.issue_tenant_token(
            tenant="acme", name="ci", role="tenant_admin", **WHY
        )

    def _port(self, url: str) -> str:
        return url.rsplit(":", 1)[1]

    def _serve(self) -> None:
        config = uvicorn.Config(
            application, port=int(self._port(self.console)), lifespan="off", log_config=None
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(setattr, server, "should_exit", True)

    def _run(self, *words: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("DJANGO", "SIGNALBOX"))}
        log = self.stack.enter_context((self.folder / f"{words[0]}.log").open("wb"))
        process = subprocess.Popen(
            [sys.executable, "-m", "routing_agent", *words], cwd=ROOT, env=kept,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)

    def turn(self) -> None:
        """Run each loop once, and do what its tasks would."""
        services.reconcile_replicas()
        fleet.reconcile_adapters()
        services.publish_if_behind()
        for agent in Agent.objects.all():
            services.deliver_table(agent_id=agent.pk, epoch=current_epoch())

    def until(self, condition: Callable[[], Any], limit_s: float = 60.0) -> Any:
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            logs = "".join(p.read_text()[-1500:] for p in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, logs
            self.turn()
            time.sleep(0.1)
        return found

    def api(self, method: str, path: str, **given: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(
            method, f"{self.console}/api/v1/adapters/{path}", headers=headers, timeout=30, **given
        )

    def upload(self, fill: int = 0) -> httpx.Response:
        packed = made.zipped({
            "adapter_config.json": made.config_bytes(),
            "adapter_model.safetensors": made.weights(fill=fill),
        })  # fmt: skip
        return self.api(
            "POST", "", data={"name": "sql", "model": "m"}, files={"f": ("a.zip", packed)}
        )

    def ask(self, model: str, tenant: str = "acme") -> httpx.Response | None:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        headers = {"Authorization": f"Bearer {self.keys[tenant]}"}
        try:
            return httpx.post(
                f"{self.traffic}/v1/chat/completions", json=body, headers=headers, timeout=20
            )
        except httpx.TransportError:
            return None

    def says(self, status: int, model: str, tenant: str = "acme") -> bool:
        answer = self.ask(model, tenant)
        return answer is not None and answer.status_code == status

    def listed(self) -> list[str]:
        """What the engine itself lists."""
        found = httpx.get(f"{self.engine}/v1/models").json()["data"]
        return sorted(model["id"] for model in found)


@pytest.fixture
def live(settings: Any, tmp_path: Path, redis_server: Any) -> Iterator[Live]:
    settings.ADAPTER_DIR = tmp_path / "adapters"
    settings.ALLOWED_HOSTS = ["*"]
    with ExitStack() as stack:
        stack.callback(connections.close_all)
        yield Live(stack, tmp_path)


def test_an_adapter_is_uploaded_served_replaced_shared_and_deleted_everywhere(live: Live):
    live.until(lambda: Replica.objects.filter(state="ready").exists())
    live.until(lambda: live.says(200, "m"))
    assert live.says(404, "sql")

    made_one = live.upload()
    assert made_one.status_code == 201, made_one.text
    path = f"{made_one.json()['id']}/"
    live.until(lambda: live.says(200, "sql"))
    live.until(lambda: live.api("GET", path).json()["progress"]["code"] == "serving")
    first = Adapter.objects.get().versions.get()
    assert live.listed() == sorted(["m", first.served_name])
    assert live.says(404, "sql", "globex")
    assert live.says(404, "acme/sql", "globex")

    assert live.upload(fill=1).status_code == 201
    live.until(lambda: first.adapter.versions.filter(number=2, state="active").exists())
    live.until(lambda: first.adapter.versions.filter(number=1, removed_at__isnull=False).exists())
    second = first.adapter.versions.get(number=2)
    assert live.listed() == sorted(["m", second.served_name])
    assert live.says(200, "sql")
    assert not uploads.folder_of(first.digest).exists()

    shared = live.api("PATCH", path, json={"shared_with": ["globex"]})
    assert shared.status_code == 200, shared.text
    live.until(lambda: live.says(200, "acme/sql", "globex"))

    booked = UsageHour.objects.filter(adapter=second.served_name)
    live.until(lambda: booked.filter(tenant="globex", output_tokens__gt=0).exists())

    assert live.api("DELETE", path).status_code == 204
    live.until(lambda: live.says(404, "sql") and live.says(404, "acme/sql", "globex"))
    live.until(lambda: live.api("GET", path).status_code == 404)
    assert live.listed() == ["m"]
    assert not uploads.folder_of(second.digest).exists()
    assert live.says(200, "m")
