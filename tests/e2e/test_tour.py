"""The tour: a fleet comes up with one command, carries traffic, and survives its control plane."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest
import redis
from stack import processes

from tests.e2e.stack import Stack, eventually
from tests.e2e.streams import Streams

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
CONTROL_PLANE = ("web", "worker", "beat", "redis")


def streams(stack: Stack, agent: int, clients: int = 50) -> Streams:
    told = stack.status()
    return Streams(stack.ports.traffic(agent), told["api_key"], told["model"], clients=clients)


def change_the_fleet(stack: Stack) -> int:
    """Make a change that needs a new table and give the fleet revision it caused."""
    with stack.operator() as operator:
        pool = operator.get("/api/v1/pools/chat/").json()
        limit = pool["settings"]["queue_limit_per_replica"]["value"] + 1
        answer = operator.patch(
            "/api/v1/pools/chat/",
            json={"settings": {"queue_limit_per_replica": limit}, "reason": "end-to-end test"},
            headers={"If-Match": str(pool["version"])},
        )
        assert answer.status_code == 200, answer.text
        return int(answer.json()["version"])


def test_everything_is_well_and_the_printed_command_streams(stack: Stack):
    assert set(stack.health().values()) == {"ok"}
    printed = re.search(r"curl .*?}'$", stack.printed, re.MULTILINE | re.DOTALL)
    assert printed is not None
    words = shlex.split(printed.group())
    answer = subprocess.run([*words, "--silent"], capture_output=True, text=True, timeout=60)
    assert answer.stdout.count("data: ") > 2
    assert answer.stdout.rstrip().endswith("data: [DONE]")


def test_the_status_is_what_scripts_rely_on(stack: Stack):
    told = stack.status()
    assert told["console"] == f"http://127.0.0.1:{stack.base}"
    assert (stack.root / told["admin"]["password_file"]).stat().st_mode & 0o777 == 0o600
    names = {s["name"] for s in told["services"]}
    assert {*CONTROL_PLANE, "agent-1", "agent-2", "engine-1"} <= names
    for service in told["services"]:
        assert os.getpgid(service["pid"]) == service["pid"]


def test_secrets_are_their_owners_alone_and_reach_no_log(stack: Stack):
    var = stack.root / "var"
    assert var.stat().st_mode & 0o077 == 0
    kept = [*(var / "secrets").iterdir(), *var.glob("agents/*/*"), var / "run" / "services.json"]
    assert {f.name for f in kept if f.is_file() and f.stat().st_mode & 0o077} == set()
    texts = [f.read_text().strip() for f in (var / "secrets").iterdir() if f.suffix != ".json"]
    texts += [stack.status()["api_key"]]
    logs = "".join(f.read_text() for f in (var / "log").iterdir())
    assert [text[:4] for text in texts if text in logs] == []


def test_starting_twice_is_harmless(stack: Stack):
    before = {s["name"]: s["pid"] for s in stack.status()["services"]}
    assert "Signalbox runs already." in stack.up()
    assert {s["name"]: s["pid"] for s in stack.status()["services"]} == before


def test_no_stream_breaks_when_the_whole_control_plane_is_killed_nor_needs_an_agent_one_to_start(
    stack: Stack,
):
    with streams(stack, agent=1) as clients:
        eventually(lambda: clients.running == clients.clients and clients.finished > 10)
        stack.kill(*CONTROL_PLANE)
        for name in CONTROL_PLANE:
            stack.command("down", name)
        at_outage = clients.finished
        # Every client has begun and ended a stream without a control plane.
        eventually(lambda: clients.finished > at_outage + 2 * clients.clients, limit_s=120)
        held = stack.epochs()  # nobody is left to tell them of another
        restarted_it_serves_from_its_disk(stack, held)
        stack.up()
        at_return = clients.finished
        eventually(lambda: clients.finished > at_return + clients.clients, limit_s=120)
    assert clients.failures == []
    change_the_fleet(stack)
    eventually(lambda: min(stack.epochs()) == max(stack.epochs()) > max(held), limit_s=60)


def restarted_it_serves_from_its_disk(stack: Stack, held: list[int]) -> None:
    killed = stack.pid("agent-2")
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: stack.pid("agent-2") not in (killed, None))
    ready = f"http://127.0.0.1:{stack.ports.admin(2)}/readyz"
    eventually(lambda: httpx.get(ready).status_code == 200)
    assert stack.epochs() == held
    with streams(stack, agent=2, clients=5) as clients:
        eventually(lambda: clients.finished + len(clients.failures) >= 10)
    assert clients.failures == []


@pytest.mark.parametrize("name", ["web", "worker", "beat"])
def test_one_killed_service_comes_back_and_no_other_is_touched(stack: Stack, name: str):
    before = {s["name"]: s["pid"] for s in stack.status()["services"]}
    stack.kill(name)
    eventually(lambda: stack.pid(name) not in (before[name], None))
    eventually(lambda: set(stack.health().values()) == {"ok"}, limit_s=90)
    after = {s["name"]: s["pid"] for s in stack.status()["services"]}
    assert {n for n in after if after[n] != before[n]} == {name}


def test_redis_killed_three_times_and_emptied_stops_no_worker(stack: Stack):
    before = {s["name"]: s["pid"] for s in stack.status()["services"]}
    epoch = max(stack.epochs())
    for killed in range(3):
        pid = stack.pid("redis")
        os.kill(pid, signal.SIGKILL)
        if killed == 1:  # while there is no broker
            change_the_fleet(stack)
        eventually(lambda pid=pid: stack.pid("redis") not in (pid, None))
    eventually(lambda: min(stack.epochs()) > epoch)
    epoch = max(stack.epochs())
    secret = (stack.root / "var" / "secrets" / "redis-password").read_text().strip()
    with redis.Redis(port=stack.ports.redis, password=secret) as emptied:
        eventually(lambda: emptied.ping())
        emptied.flushall()
    change_the_fleet(stack)
    eventually(lambda: min(stack.epochs()) > epoch)
    eventually(lambda: set(stack.health().values()) == {"ok"}, limit_s=90)
    after = {s["name"]: s["pid"] for s in stack.status()["services"]}
    assert {n for n in after if after[n] != before[n]} == {"redis"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_change_with_redis_dead_or_frozen_answers_soon_and_still_reaches_the_agents(
    stack: Stack, number: signal.Signals
):
    before = max(stack.epochs())
    pid = stack.pid("redis")
    if number == signal.SIGKILL:
        stack.command("down", "redis")
    else:
        os.kill(pid, number)
    try:
        with stack.operator() as operator:
            started = time.monotonic()
            answer = operator.post(
                "/api/v1/tenants/",
                json={"slug": f"t{number}-{before}", "name": "Made in an outage", "reason": "test"},
            )
            took_s = time.monotonic() - started
        assert answer.status_code == 201, answer.text
        assert took_s < 1.0  # the promise: a dead broker costs a few tenths of a second
    finally:
        if number == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    stack.up()
    eventually(lambda: min(stack.epochs()) > before, limit_s=30)


@pytest.mark.stops_all
def test_down_leaves_no_process_even_after_the_supervisor_was_killed(stack: Stack):
    groups = [s["pid"] for s in stack.status()["services"]]
    supervisor = int((stack.root / "var" / "run" / "supervisor.pid").read_text())
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: processes.start_mark(supervisor) is None)
    assert "repairs it" in stack.command("status").stdout
    down = stack.command("down")
    assert down.returncode == 0, down.stderr
    assert [processes.group_members(group) for group in groups] == [[]] * len(groups)
    assert _working_in(stack.root) == []
    assert set(stack.health().values()) == {"down"}


def test_up_repairs_what_a_killed_supervisor_left(stack: Stack):
    supervisor = int((stack.root / "var" / "run" / "supervisor.pid").read_text())
    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: processes.start_mark(supervisor) is None)
    assert "left processes behind" in stack.up()
    assert set(stack.health().values()) == {"ok"}


@pytest.mark.stops_all
def test_in_the_foreground_it_shows_a_readable_log_and_ctrl_c_stops_all_of_it(
    started_stack: Stack,
):
    stack = started_stack
    stack.command("down")
    process = subprocess.Popen(
        [stack.root / "bin" / "up", "--no-traffic", "--port-base", str(stack.base)],
        cwd=stack.root,
        env=stack.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        shown = iter(process.stdout)
        assert any("Ctrl-C stops all of it." in line for line in shown)
        stack.kill("worker")  # something to tell
        assert any(re.match(r"\d\d:\d\d:\d\d worker ", line) for line in shown)
        groups = [s["pid"] for s in stack.status()["services"]]
        process.send_signal(signal.SIGINT)
        assert any(" stopped " in line for line in shown)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert [processes.group_members(group) for group in groups if group] == [[]] * len(groups)


def _working_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            working = (process / "cwd").readlink()
        except OSError:
            continue
        if working.is_relative_to(folder):
            found.append(process.name)
    return found
