"""An adapter through a managed agent before a live engine: served, restarted, deleted.

    python -m bench.live_adapters vllm http://127.0.0.1:8301 --adapter FOLDER/lora-a \\
        --pid-file FILE --restart "COMMAND WORDS"

The engine must serve one model without a key and take LoRA adapters while it runs. The control
plane here is the least that the wire contract asks for, in this process: it gives out one table and
the adapter's files, and is gone while the engine is restarted. Nothing else is stopped or started
but that engine and one `python -m routing_agent agent`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import os
import secrets
import shlex
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bench.live_agent import addresses
from bench.live_client import Ending, ask, chat, get_json
from bench.live_run import GOOD, LONG, RETURN_LIMIT_S, Run, pid_of, seconds, until
from routing_agent import wire
from routing_agent.control.http_server import Answer, HttpServer, Request, error_answer, json_answer
from routing_agent.http_client import CallFailed, HttpClient

LINEAGE, TOKEN, NODE = "bench", "bench-agent-token", "bench-node"
TABLE_PATH, FILES_PATH = "/api/v1/agent/table", "/api/v1/agent/adapters/"
SERVE_LIMIT_S = 60.0  # an adapter is live within a minute
TOKENS = 16


class SmallControlPlane:
    """Registers one agent, gives it one table, and the files of one adapter."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.folder = folder
        self.adapter = adapter_of(folder, run.model)
        self.epoch = 0
        self.table = b""
        self.report: wire.Report | None = None
        self._key = Ed25519PrivateKey.generate()
        self._server = HttpServer(self._handle)

    async def start(self, port: int) -> str:
        """Listen and give the address."""
        return f"http://127.0.0.1:{await self._server.start('127.0.0.1', port)}"

    async def stop(self) -> None:
        """Be gone."""
        await self._server.close()

    def publish(self, *, has_adapter: bool) -> None:
        """Put another table in place, which the agent pulls."""
        adapters = (self.adapter,) if has_adapter else ()
        self.epoch += 1
        endpoint = wire.Endpoint(
            replica="replica-1", url=self.run.urls[0], engine=self.run.engine, node=NODE,  # type: ignore[arg-type]
            adapters=tuple(one.served_name for one in adapters),
        )  # fmt: skip
        pool = wire.Pool(
            name="bench", model=self.run.model, version="1", overload="queue", endpoints=(endpoint,)
        )
        route = wire.ModelRoute(model=self.run.model, split=(wire.WeightedPool(pool="bench"),))
        table = wire.RoutingTable(
            lineage=LINEAGE, epoch=self.epoch, fleet_revision=self.epoch, open_access=True,
            models=(route,), pools=(pool,), adapters=adapters,
        )  # fmt: skip
        table = msgspec.structs.replace(table, digest=wire.table_digest(table))
        self.table = msgspec.json.encode(table)

    def states(self) -> tuple[wire.AdapterState, ...]:
        """Give what the agent last told of its adapters."""
        report = self.report
        return () if report is None else tuple(s for r in report.replicas for s in r.adapter_states)

    async def _handle(self, request: Request) -> Answer:
        if request.path.endswith("/register"):
            public = base64.b64encode(self._key.public_key().public_bytes_raw()).decode()
            return json_answer(
                wire.RegisterReply(
                    agent="bench", agent_token=TOKEN, public_key=public, lineage=LINEAGE,
                    server_time=time.time(), report_interval_s=0.5,
                )
            )  # fmt: skip
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return error_answer(401, "agent_unknown", "No agent has this token.")
        if request.path.endswith("/report"):
            self.report = msgspec.json.decode(request.body, type=wire.Report)
            return json_answer(
                wire.ReportReply(
                    server_time=time.time(), lineage=LINEAGE, epoch=self.epoch,
                    usage_acknowledged=max((u.number for u in self.report.usage), default=0),
                    report_interval_s=0.5,
                )
            )  # fmt: skip
        if request.path == TABLE_PATH:
            return Answer(200, self.table, headers=self._signature())
        digest, _, name = request.path.removeprefix(FILES_PATH).partition("/")
        if digest == self.adapter.digest and name in wire.ADAPTER_FILES:
            content = await asyncio.to_thread((self.folder / name).read_bytes)
            return Answer(200, content, content_type="application/octet-stream")
        return error_answer(404, "not_found", "There is no such page.")

    def _signature(self) -> dict[str, str]:
        sent, nonce = repr(time.time()), secrets.token_hex(16)
        signed = wire.signed_bytes(
            method="GET", path=TABLE_PATH, body=self.table, time=sent, nonce=nonce
        )
        mark = base64.b64encode(self._key.sign(signed)).decode()
        return {wire.SIGNATURE_HEADER: mark, wire.TIME_HEADER: sent, wire.NONCE_HEADER: nonce}


def adapter_of(folder: Path, model: str) -> wire.Adapter:
    """Describe the adapter in a folder as a table does."""
    files = tuple(
        wire.AdapterFile(
            name=name,
            size_bytes=(folder / name).stat().st_size,
            sha256=hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        )
        for name in wire.ADAPTER_FILES
    )
    digest = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
    return wire.Adapter(
        name=folder.name, tenant="local", model=model, digest=digest, files=files,
        served_name=f"local.{folder.name}.{digest[: wire.SERVED_NAME_DIGITS]}",
        size_bytes=sum(file.size_bytes for file in files),
    )  # fmt: skip


# -- the checks ------------------------------------------------------------------------------------


async def served(run: Run, plane: SmallControlPlane) -> None:
    """Publish an adapter and see it answer, by its name and by the lora field."""
    name = plane.adapter.name
    base = await _said(run, run.model)
    before = await ask(run.agent, chat(name, tokens=TOKENS, stream=False))
    run.note("before: the adapter does not exist", before.outcome,
             before.outcome == "404 model_not_found")  # fmt: skip
    plane.publish(has_adapter=True)
    took_s = await until(partial(_answers, run, name), SERVE_LIMIT_S)
    by_name = await _said(run, name)
    direct = await ask(run.urls[0], _as_the_engine_knows_it(run, plane))
    run.note(f"published: first answer ({plane.adapter.size_bytes} bytes)", seconds(took_s),
             took_s is not None)  # fmt: skip
    run.note("its answer is the engine's own, and not the base's",
             f"{by_name[:20]!r}, base {base[:20]!r}",
             by_name == direct.text != base)  # fmt: skip
    by_field = await ask(run.agent, chat(run.model, tokens=TOKENS, stream=True, lora=name))
    again = await _said(run, run.model)
    run.note("lora field: the same; base: as before", f"{by_field.text[:20]!r}",
             by_field.text == by_name and again == base)  # fmt: skip
    listed = await get_json(run.client, f"{run.agent}/v1/models")
    parents = {m["id"]: m.get("parent") for m in listed["data"]}
    run.note("model list", str(parents), parents == {run.model: None, name: run.model})
    told_s = await until(partial(_told, plane, "loaded"), 10.0)
    run.note("reported as loaded", seconds(told_s), told_s is not None)


async def restarted(run: Run, plane: SmallControlPlane, port: int) -> None:
    """Kill the engine and start it again, without a control plane, while requests come."""
    options = run.options
    if not (options.pid_file and options.restart):
        run.note("restart", "left out: no --pid-file and --restart", True)
        return
    name = plane.adapter.name
    text, outcomes, wrong, stopping = await _said(run, name), Counter[str](), 0, asyncio.Event()

    async def keep_asking() -> None:
        nonlocal wrong
        while not stopping.is_set():
            ending = await ask(run.agent, chat(name, tokens=TOKENS, stream=False))
            outcomes[ending.outcome] += 1
            wrong += ending.outcome == GOOD and ending.text != text
            await asyncio.sleep(0.1)

    await plane.stop()
    asking = asyncio.ensure_future(keep_asking())
    os.killpg(pid_of(options.pid_file), signal.SIGKILL)
    await until(partial(_is_down, run), RETURN_LIMIT_S)
    starting = await asyncio.create_subprocess_exec(
        *shlex.split(options.restart), stdout=asyncio.subprocess.DEVNULL
    )
    up_s = await until(partial(_is_up, run), RETURN_LIMIT_S, pause_s=0.02)
    back_s = await until(partial(_answers, run, name), SERVE_LIMIT_S)
    stopping.set()
    await asking
    await starting.wait()
    run.note("restart without a control plane: engine up after", seconds(up_s), up_s is not None)
    run.note("then the adapter is served again after", seconds(back_s), back_s is not None)
    run.note("meanwhile, each 0.1 s", ", ".join(f"{n} x {o}" for o, n in outcomes.most_common()),
             wrong == 0 and not any("404" in outcome for outcome in outcomes))  # fmt: skip
    plane._server = HttpServer(plane._handle)
    await plane.start(port)


async def deleted(run: Run, plane: SmallControlPlane) -> None:
    """Delete the adapter while it streams."""
    name, body = plane.adapter.name, chat(plane.adapter.name, tokens=LONG, stream=True)
    stream = asyncio.ensure_future(ask(run.agent, body))
    await until(partial(_runs, run), 10.0)
    plane.publish(has_adapter=False)
    gone_s = await until(partial(_is_unknown, run, name), 10.0)
    still = not stream.done()
    ending: Ending = await stream
    unloaded_s = await until(partial(_is_unlisted, run, plane), 30.0)
    run.note("deleted: new requests get 404 after", f"{seconds(gone_s)}, stream running: {still}",
             gone_s is not None)  # fmt: skip
    run.note("its stream went on to its end", f"{ending.outcome}, {len(ending.text)} characters",
             ending.outcome == GOOD)  # fmt: skip
    run.note("unloaded after the stream ended", seconds(unloaded_s), unloaded_s is not None)


def _as_the_engine_knows_it(run: Run, plane: SmallControlPlane) -> dict[str, object]:
    from routing_agent.core.engine_traits import adapter_model

    name = adapter_model(run.engine, run.model, plane.adapter.served_name)  # type: ignore[arg-type]
    return chat(name or "", tokens=TOKENS, stream=False)


async def _said(run: Run, model: str) -> str:
    return (await ask(run.agent, chat(model, tokens=TOKENS, stream=False))).text


async def _answers(run: Run, model: str) -> bool:
    return (await ask(run.agent, chat(model, tokens=1, stream=False))).outcome == GOOD


async def _is_unknown(run: Run, model: str) -> bool:
    ending = await ask(run.agent, chat(model, tokens=1, stream=False))
    return ending.outcome == "404 model_not_found"


async def _told(plane: SmallControlPlane, state: str) -> bool:
    return any(one.state == state for one in plane.states())


async def _runs(run: Run) -> bool:
    return bool(await run.running(run.urls[0]))


async def _is_up(run: Run) -> bool:
    try:
        return (await run.client.call("GET", f"{run.urls[0]}/health")).ok
    except CallFailed:
        return False


async def _is_down(run: Run) -> bool:
    return not await _is_up(run)


async def _is_unlisted(run: Run, plane: SmallControlPlane) -> bool:
    listed = await get_json(run.client, f"{run.urls[0]}/v1/models")
    return plane.adapter.served_name not in {model["id"] for model in listed["data"]}


# -- the program -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def agent_under(control_plane: str, options: argparse.Namespace) -> AsyncIterator[None]:
    """Run an agent under a control plane, with a state folder of its own."""
    with tempfile.TemporaryDirectory(prefix="live-adapters-") as folder:
        command = [
            sys.executable, "-m", "routing_agent", "agent", "--control-plane", control_plane,
            "--name", NODE, "--state-dir", folder, "--port", str(options.port),
            "--admin-port", str(options.port + 1),
        ]  # fmt: skip
        with Path(options.log).open("wb") as output:  # noqa: ASYNC230 - the agent's, for its life
            agent = await asyncio.create_subprocess_exec(
                *command, stdout=output, stderr=output,
                env=os.environ | {"SIGNALBOX_TOKEN": "once"},
            )  # fmt: skip
            try:
                yield
            finally:
                with contextlib.suppress(ProcessLookupError):  # it ended by itself
                    agent.terminate()
                await agent.wait()


async def main(options: argparse.Namespace) -> int:
    """Start control plane and agent, run the checks, give the exit status."""
    client = HttpClient()
    run = Run(options.engine, [options.url], *addresses(options), client, options)
    models = await get_json(client, f"{options.url}/v1/models")
    run.model = next(model["id"] for model in models["data"] if not model.get("parent"))
    plane = SmallControlPlane(run, options.adapter)
    plane.publish(has_adapter=False)
    port = options.port + 2
    try:
        async with agent_under(await plane.start(port), options):
            ready_s = await until(partial(_answers, run, run.model), 20.0)
            run.note("agent and engine answer", seconds(ready_s), ready_s is not None)
            await served(run, plane)
            await restarted(run, plane, port)
            await deleted(run, plane)
    finally:
        await plane.stop()
        await client.close()
    return 0 if all(row.ok for row in run.rows) else 1


def options_of(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.live_adapters", description=__doc__)
    parser.add_argument("engine", choices=("vllm", "sglang"))
    parser.add_argument("url")
    parser.add_argument("--adapter", type=Path, required=True, help="folder with its two files")
    parser.add_argument("--pid-file", help="of the engine's process group leader")
    parser.add_argument("--restart", help="command that starts the engine again")
    parser.add_argument("--port", type=int, default=9300, help="and the two above it")
    parser.add_argument("--log", default="live-adapters.log", help="of the agent")
    return parser.parse_args(words)


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main(options_of())))
