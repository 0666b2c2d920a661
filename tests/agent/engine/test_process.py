"""Engine processes that an agent starts: real processes, real signals, real files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from routing_agent.control.files import write_durably
from routing_agent.engine import marks, process
from routing_agent.engine.process import EngineProcesses, without_keys
from routing_agent.engine.programs import EngineRules
from routing_agent.wire import Action, EngineProcess, StartEngine, StopEngine
from tests.agent.waiting import until
from tests.ports import free_port

NOW = 1_000_000.0


def script(folder: Path, body: str) -> str:
    """An executable that stands for an engine: whatever its words, it does `body`."""
    path = folder / "engine"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


class Rig:
    """An agent's executor, and another life of it."""

    def __init__(self, folder: Path, **rules: Any):
        self.folder = folder / "engines"
        self.rules = EngineRules(
            **({"programs": {"simulated": sys.executable}, "first_port": 1024, "last_port": 65535}
               | rules)
        )  # fmt: skip
        self.serial = 0
        self.port = free_port()
        self.lives: list[EngineProcesses] = []  # of one that died nobody takes the zombies away
        self.engines = self.another_life()

    def another_life(self) -> EngineProcesses:
        self.engines = EngineProcesses(self.rules, self.folder, write_durably)
        self.engines.adopt()
        self.lives.append(self.engines)
        return self.engines

    async def start(self, replica: str = "rpl-1", **given: Any) -> Any:
        serial = given.pop("serial", None)
        expires_at = given.pop("expires_at", NOW + 30)
        fields = {"program": "simulated", "served_name": "m", "port": self.port} | given
        return await self.act(StartEngine(replica=replica, **fields), serial, expires_at)

    async def stop(self, replica: str = "rpl-1", serial: int | None = None, **given: Any) -> Any:
        return await self.act(StopEngine(replica=replica, **given), serial, NOW + 30)

    async def act(self, do: Any, serial: int | None, expires_at: float) -> Any:
        self.serial = max(self.serial, serial or self.serial + 1)
        action = Action(id="a", serial=serial or self.serial, expires_at=expires_at, do=do)
        return await self.engines.obey(action, NOW)

    def of(self, replica: str = "rpl-1") -> EngineProcess:
        return next(e for e in self.engines.report() if e.replica == replica)

    async def becomes(self, state: str, replica: str = "rpl-1") -> EngineProcess:
        def is_there() -> bool:
            self.engines.look()
            return self.of(replica).state == state

        await until(is_there)
        return self.of(replica)

    def end_all(self) -> None:
        for life in self.lives:
            for child in life._children.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def make(**rules: Any) -> Rig:
        made.append(Rig(tmp_path, **rules))
        return made[-1]

    yield make
    for one in made:
        one.end_all()


async def answers(port: int) -> bool:
    try:
        async with httpx.AsyncClient(timeout=2.0) as client:
            return (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def test_an_engine_starts_serves_outlives_its_agent_is_adopted_and_stops(rig) -> None:
    one = rig()
    assert (await one.start(gpus=(0,))).outcome == "accepted"
    async with asyncio.timeout(20):
        while not await answers(one.port):  # noqa: ASYNC110 - another process raises no event
            await asyncio.sleep(0.05)
    pid = one.of().pid
    assert os.getpgid(pid) == pid != os.getpgid(0)

    one.another_life()
    assert (one.of().state, one.of().pid, one.of().gpus) == ("running", pid, (0,))
    assert await answers(one.port)
    assert (await one.start(serial=5)).outcome == "already_there"
    assert one.of().pid == pid

    assert (await one.stop(serial=6)).outcome == "accepted"
    await one.becomes("stopped")
    assert not marks.start_mark(pid)
    assert not await answers(one.port)


async def test_an_action_is_obeyed_once_however_often_it_comes(rig, tmp_path) -> None:
    one = rig(programs={"llamacpp": script(tmp_path, "exec sleep 60")}, folders=(tmp_path,))
    words = {"program": "llamacpp", "model_source": "engine"}
    assert (await one.start(serial=2, **words)).outcome == "accepted"
    pid = one.of().pid
    many = await asyncio.gather(*(one.start(serial=2, **words) for _ in range(5)))
    assert {r.outcome for r in many} == {"already_there"}
    one.another_life()
    assert (await one.start(serial=2, **words)).outcome == "already_there"
    assert (await one.start(serial=1, **words)).outcome == "refused_older"
    os.kill(pid, signal.SIGKILL)
    await one.becomes("failed")
    # Its reply may have been lost and the action comes again: what it started once, it did start.
    assert (await one.start(serial=2, **words)).outcome == "already_there"
    assert one.of().state == "failed"
    assert (await one.start(serial=4, **words)).outcome == "accepted"
    assert one.of().pid not in (0, pid)


async def test_a_start_that_comes_after_its_stop_is_refused(rig) -> None:
    one = rig()
    assert (await one.stop(serial=3)).outcome == "accepted"
    assert (await one.start(serial=2)).outcome == "refused_older"
    assert one.of().state == "stopped"


async def test_an_action_that_has_expired_is_not_begun(rig) -> None:
    one = rig()
    assert (await one.start(expires_at=NOW)).outcome == "expired"
    assert one.engines.report() == ()


async def test_a_crash_is_told_with_how_it_ended_and_the_end_of_the_log(rig, tmp_path) -> None:
    crash = script(tmp_path, 'echo "CUDA out of memory"; exit 3')
    one = rig(programs={"llamacpp": crash}, folders=(tmp_path,))
    await one.start(program="llamacpp", model_source="engine")
    failed = await one.becomes("failed")
    assert failed.detail.startswith("its process ended with status 3")
    assert failed.log_tail == "CUDA out of memory"


async def test_one_that_does_not_listen_is_killed_with_its_whole_group(rig, tmp_path) -> None:
    deaf = script(tmp_path, "trap '' TERM; sleep 60 & echo child $!; while true; do sleep 1; done")
    one = rig(programs={"llamacpp": deaf}, folders=(tmp_path,))
    await one.start(program="llamacpp", model_source="engine")
    log = one.folder / "rpl-1.log"
    await until(lambda: "child" in log.read_text())
    child = int(log.read_text().split()[1])
    await one.stop(patience_s=0.0)
    await one.becomes("stopped")
    await until(lambda: not marks.start_mark(child))


@pytest.mark.parametrize("is_adopted", [False, True])
async def test_what_a_crashed_engine_leaves_behind_is_ended(rig, tmp_path, is_adopted) -> None:
    parent = script(tmp_path, "sleep 60 & echo child $!; wait")
    one = rig(programs={"llamacpp": parent}, folders=(tmp_path,))
    await one.start(program="llamacpp", model_source="engine")
    log = one.folder / "rpl-1.log"
    await until(lambda: "child" in log.read_text())
    child = int(log.read_text().split()[1])
    if is_adopted:
        one.another_life()
    os.kill(one.of().pid, signal.SIGKILL)
    await one.becomes("failed")
    await until(lambda: not marks.start_mark(child))


async def test_gpus_and_ports_are_given_once(rig, tmp_path) -> None:
    one = rig()
    assert (await one.start("rpl-1", gpus=(0, 1))).outcome == "accepted"
    taken = await one.start("rpl-2", gpus=(1, 2), port=free_port())
    assert (taken.outcome, taken.detail) == ("refused", "GPU 1 is held by the engine of rpl-1.")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = await one.start("rpl-3", port=port)
    assert (taken.outcome, taken.detail) == ("refused", f"Port {port}: Address already in use.")


async def test_only_what_the_agents_own_configuration_allows_is_started(rig, tmp_path) -> None:
    one = rig(first_port=9000, last_port=9001, folders=(tmp_path / "models",))
    (tmp_path / "models").mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "models" / "link").symlink_to(tmp_path / "secret")

    async def refusal(**given: Any) -> str:
        receipt = await one.start(**({"port": 9000} | given))
        assert receipt.outcome == "refused"
        return str(receipt.detail)

    assert "may not start vllm" in await refusal(program="vllm")
    assert "outside --engine-ports 9000-9001" in await refusal(port=8000)
    assert "--faults cannot be set" in await refusal(arguments={"--faults": "{}"})
    assert "--speed takes a value of type float" in await refusal(arguments={"--speed": "1; ls"})
    one.rules = EngineRules(
        programs={"vllm": "true", "sglang": "/no/such"}, first_port=1, last_port=65535,
        folders=(tmp_path / "models",),
    )  # fmt: skip
    one.another_life()
    for source in ("", "../secret", "/etc", "link", "nowhere"):
        assert "No weights" in await refusal(program="vllm", model_source=source), source
    assert "no executable /no/such" in await refusal(program="sglang", model_source="x")
    assert one.engines.report() == ()


async def test_one_that_started_as_its_agent_died_is_found_by_its_mark(rig, tmp_path) -> None:
    one = rig(programs={"llamacpp": script(tmp_path, "exec sleep 60")}, folders=(tmp_path,))
    await one.start(program="llamacpp", model_source="engine")
    pid = one.of().pid
    record = one.engines._records["rpl-1"]
    record.pid, record.mark = 0, ""
    one.engines._save(record)  # as it is on disk between the two writes of a start
    one.another_life()
    assert (one.of().state, one.of().pid) == ("running", pid)


async def test_one_that_ended_while_no_agent_watched_is_told_as_failed(rig, tmp_path) -> None:
    one = rig(programs={"llamacpp": script(tmp_path, "exec sleep 60")}, folders=(tmp_path,))
    await one.start(program="llamacpp", model_source="engine")
    os.killpg(one.of().pid, signal.SIGKILL)
    await until(lambda: not marks.start_mark(one.of().pid))
    one.another_life()
    assert one.of().state == "failed"
    assert "nobody saw how it ended" in one.of().detail


async def test_a_log_that_grows_is_bounded(rig, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(process, "LOG_LIMIT_BYTES", 1000)
    noisy = script(tmp_path, "while true; do echo 0123456789; done")
    one = rig(programs={"llamacpp": noisy}, folders=(tmp_path,))
    await one.start(program="llamacpp", model_source="engine")
    older = one.folder / "rpl-1.log.older"
    await until(lambda: one.engines.look() or older.exists())
    assert older.stat().st_size == 1000


async def test_secrets_of_the_agent_do_not_reach_its_engines(rig, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SIGNALBOX_TOKEN", "one-time")
    show = script(tmp_path, "env; exec sleep 60")
    one = rig(programs={"llamacpp": show}, folders=(tmp_path,))
    await one.start(program="llamacpp", model_source="engine", gpus=(3,), api_key="engines-own")
    log = one.folder / "rpl-1.log"
    await until(lambda: "CUDA_VISIBLE_DEVICES=3" in log.read_text())
    await until(lambda: "LLAMA_API_KEY=engines-own" in log.read_text())
    assert "one-time" not in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("wrote", "shown"),
    [
        ("ServerArgs(port=1, api_key='sk-1', tp=2)", "ServerArgs(port=1, api_key='***', tp=2)"),
        ("{'api_key': ['sk-1'], 'x': 1}", "{'api_key': ['***'], 'x': 1}"),
        ("python --api-key sk-1 --port 2", "python --api-key *** --port 2"),
        ("LLAMA_API_KEY=sk-1", "LLAMA_API_KEY=***"),
        ("api_key=None, CUDA out of memory", "api_key=None, CUDA out of memory"),
    ],
)
def test_what_an_engine_wrote_is_told_without_its_key(wrote: str, shown: str) -> None:
    assert without_keys(wrote) == shown
