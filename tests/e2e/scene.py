"""The stage of the story: engines of its own, an operator's hands, clients, an engine's word."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any

import httpx
from stack import ports

from tests import adapters
from tests.e2e.stack import Stack, eventually

NUMBERS = count(50)  # of engines: those from here on are nobody else's
REASON = "the story"


class Engine:
    """One simulated engine and what it says of itself."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    def says(self, metric: str) -> float:
        """Give a metric of its own, summed over its series."""
        page = httpx.get(f"{self.url}/metrics").text
        found = re.findall(rf"^{re.escape(metric)}(?:{{[^}}]*}})? ([\d.e+-]+)$", page, re.MULTILINE)
        return sum(map(float, found))

    @property
    def finished(self) -> int:
        """Give how many requests it has finished."""
        return int(self.says("vllm:request_success_total"))

    @property
    def adapters(self) -> set[str]:
        """Give the names of the adapters it lists."""
        listed = httpx.get(f"{self.url}/v1/models").json()["data"]
        return {m["id"] for m in listed if m.get("parent")}

    def plant(self, **switches: Any) -> None:
        """Switch faults on; `None` switches one off."""
        answer = httpx.post(f"{self.url}/simulate/faults", json=switches)
        assert answer.status_code == 200, answer.text


class Operator:
    """Somebody with the API: every write says its reason, and a refusal fails the test."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str) -> Any:
        """Read a thing."""
        answer = self.client.get(f"/api/v1/{path}")
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    def send(self, method: str, path: str, *, wanted: int, **fields: Any) -> Any:
        """Write a thing; `wanted` is the status that must come."""
        answer = self.client.request(method, f"/api/v1/{path}", json={"reason": REASON} | fields)
        assert answer.status_code == wanted, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def make(self, path: str, **fields: Any) -> Any:
        """Create a thing."""
        return self.send("POST", path, wanted=201, **fields)

    def act(self, path: str, **fields: Any) -> Any:
        """Do something to a thing."""
        return self.send("POST", path, wanted=200, **fields)

    def change(self, path: str, **fields: Any) -> Any:
        """Change a thing and wait until every agent obeys."""
        made = self.send("PATCH", path, wanted=200, **fields)
        self.observed(made)
        return made

    def observed(self, made: Any) -> None:
        """Wait until every agent obeys a change, if it is for agents."""
        revision = made["change"]["fleet_revision"]
        if revision is None:
            return
        path = f"routing-tables/observed/?revision={revision}"
        eventually(lambda: self.get(path)["complete"])

    def replica_is(self, public_id: str, state: str) -> bool:
        """Say whether a replica is in this state."""
        return bool(self.get(f"replicas/{public_id}/")["state"] == state)


class Scene:
    """The story's own corner of a running product."""

    def __init__(self, stack: Stack, operator: Operator, cleanup: ExitStack) -> None:
        self.stack = stack
        self.operator = operator
        self._cleanup = cleanup

    def engine(self, model: str, *options: str) -> Engine:
        """Start a simulated engine; it is gone at the end."""
        port = next(p for p in map(self.stack.ports.engine, NUMBERS) if ports.is_free(p))
        engine = Engine(self._engine_process(port, model, *options), port)
        eventually(lambda: httpx.get(f"{engine.url}/health").status_code == 200)
        return engine

    def restart(self, engine: Engine, model: str, *options: str) -> None:
        """Kill an engine and start another one at its address, with nothing loaded."""
        engine.process.kill()
        engine.process.wait(20)
        port = int(engine.url.rpartition(":")[2])
        engine.process = self._engine_process(port, model, *options)
        eventually(lambda: httpx.get(f"{engine.url}/health").status_code == 200)

    def _engine_process(self, port: int, model: str, *options: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "routing_agent", "simulate-engine"),
                *("--port", str(port), "--model", model, *options),
            ],
            cwd=self.stack.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._cleanup.callback(process.wait, 20)
        self._cleanup.callback(process.kill)
        return process

    def pool(self, slug: str, model: str, version: str, **fields: Any) -> None:
        """Make a version of a model and a pool for it."""
        self.operator.make("model-versions/", model=model, name=version)
        made = {"slug": slug, "model": model, "model_version": version, "overload_policy": "queue"}
        self.operator.make("pools/", **(made | fields))

    def serve(self, pool: str, model: str, *options: str, **fields: Any) -> Engine:
        """Start an engine, register it, and wait until it is ready."""
        engine = self.engine(model, *options)
        made = self.operator.make(
            "replicas/", pool=pool, url=engine.url, served_model=model, node="node-1", **fields
        )
        eventually(partial(self.operator.replica_is, made["id"], "ready"))
        return engine

    def tenant(self, slug: str, **limits: Any) -> str:
        """Make a tenant and give a key of its."""
        self.operator.make("tenants/", slug=slug, name=slug.title(), **limits)
        key = self.operator.make("api-keys/", tenant=slug, name="story")
        self.operator.observed(key)
        return str(key["plaintext"])

    def upload(self, tenant: str, name: str, model: str) -> dict[str, Any]:
        """Upload a small adapter for a tenant."""
        files = {
            "config": ("adapter_config.json", adapters.config_bytes(base_model_name_or_path=model)),
            "weights": ("adapter_model.safetensors", adapters.weights()),
        }
        answer = self.operator.client.post(
            "/api/v1/adapters/",
            data={"tenant": tenant, "name": name, "model": model, "reason": REASON},
            files=files,
        )
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def client(self, key: str, agent: int = 1) -> Client:
        """Give a client of an agent."""
        client = Client(f"http://127.0.0.1:{self.stack.ports.traffic(agent)}", key)
        self._cleanup.callback(client.close)
        return client


class Client:
    """Somebody with a tenant's key."""

    def __init__(self, url: str, key: str) -> None:
        # One client for all: making one costs more than a request.
        self._http = httpx.Client(
            base_url=url,
            headers={"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=None),
            timeout=60,
        )
        self.close = self._http.close

    def ask(self, model: str, *, session: str = "", **fields: Any) -> httpx.Response:
        """Ask for a short answer."""
        body = {
            "model": model,
            "max_tokens": 8,
            "messages": [{"role": "user", "content": "Tell a story."}],
        } | fields
        headers = {"x-session-id": session} if session else {}
        return self._http.post("/v1/chat/completions", json=body, headers=headers)

    def models(self) -> list[str]:
        """List what this key may call."""
        answer = self._http.get("/v1/models")
        return [m["id"] for m in answer.json()["data"]]

    def ask_at_once(self, how_many: int, model: str, **fields: Any) -> Counter[int]:
        """Ask so many times at once; gives the statuses."""
        with ThreadPoolExecutor(how_many) as threads:
            asked = [threads.submit(self.ask, model, **fields) for _ in range(how_many)]
            return Counter(a.result().status_code for a in asked)


class Load:
    """Clients that stream one answer after the other, each in sessions of its own; a context."""

    def __init__(
        self, client: Client, model: str, *, clients: int, pause_s: float = 0.0, **fields: Any
    ) -> None:
        self.finished = 0
        self.failures: list[str] = []
        self.versions: Counter[str] = Counter()
        self._ask: Callable[[str], httpx.Response] = lambda session: client.ask(
            model, session=session, stream=True, ignore_eos=True, **fields
        )
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._one, args=(n,)) for n in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _one(self, number: int) -> None:
        for turn in count():
            if self._stopping.wait(self._pause_s):
                return
            try:
                answer = self._ask(f"{number}-{turn}")
            except httpx.HTTPError as problem:
                self.failures.append(repr(problem))
                continue
            if answer.status_code == 200 and answer.text.rstrip().endswith("data: [DONE]"):
                self.finished += 1
                self.versions[answer.headers["x-signalbox-version"]] += 1
            else:
                self.failures.append(f"{answer.status_code} {answer.text[-300:]}")


@contextmanager
def scene_of(stack: Stack) -> Iterator[Scene]:
    """Give the story's corner; its engines are gone afterwards."""
    with ExitStack() as cleanup, stack.operator() as client:
        yield Scene(stack, Operator(client), cleanup)
