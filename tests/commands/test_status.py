"""bin/status tells what is there, in the shape that scripts rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from stack import health, status
from stack.layout import ROOT, Places

from tests.commands.conftest import SERVE, SmallStack, free_port


def test_before_the_first_start_every_service_is_down_and_the_exit_code_says_so(tmp_path):
    answer = subprocess.run(
        [ROOT / "bin" / "status", "--json"],
        env={**os.environ, "SIGNALBOX_VAR": str(tmp_path / "var"), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    told = json.loads(answer.stdout)
    assert answer.returncode == 1
    assert set(told) == {"console", "admin", "api_key", "model", "services"}
    assert set(told["admin"]) == {"user", "password_file"}
    assert [s["name"] for s in told["services"]][:3] == ["web", "worker", "beat"]
    assert {tuple(s) for s in told["services"]} == {("name", "pid", "url", "health")}
    assert {(s["pid"], s["health"]) for s in told["services"]} == {(None, "down")}


def test_a_running_service_is_ok_and_a_dead_supervisor_is_told(small_stack: SmallStack):
    small_stack.add("one", SERVE)
    small_stack.start()
    stack = status.known(small_stack.here)

    def seen() -> list[health.Seen]:
        return health.look(small_stack.here, stack["services"])

    assert _eventually(lambda: seen()[0].health == "ok")
    supervisor = next(r for r in small_stack.living() if r.name == "supervisor")
    os.kill(supervisor.pid, 9)
    assert _eventually(lambda: "bin/up repairs it" in status.table(small_stack.here, stack, seen()))
    assert seen()[0].pid == small_stack.pid("one")


def test_a_service_that_answers_badly_is_starting_while_it_is_young_then_unhealthy(
    small_stack: SmallStack, monkeypatch
):
    small_stack.add("mute", "import time; time.sleep(600)")
    small_stack.start()
    services = status.known(small_stack.here)["services"]
    assert health.look(small_stack.here, services)[0].health == "starting"
    monkeypatch.setattr(health, "GRACE_S", -1.0)
    assert _eventually(lambda: health.look(small_stack.here, services)[0].health == "unhealthy")


def test_a_password_never_shows_in_the_table():
    shown = status._without_password("redis://:hunter2@127.0.0.1:8379/0")
    assert shown == "redis://…@127.0.0.1:8379/0"


@pytest.fixture
def refusing_server():
    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b'{"database":\n "gone"}')

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_reason_a_service_gives_is_shown_on_one_line(refusing_server):
    told = health.ask({"kind": "http", "target": f"http://127.0.0.1:{refusing_server}/readyz"})
    assert told == '/readyz says 503: {"database": "gone"}'


def test_nobody_listening_is_told_and_is_no_crash():
    told = health.ask({"kind": "http", "target": f"http://127.0.0.1:{free_port()}/"})
    assert told.startswith("does not answer")


@pytest.mark.parametrize(
    ("ages", "told"),
    [
        ({}, "has not given a sign of life yet"),
        ({"worker.alive": 60}, "last sign of life 60 s ago"),
        ({"worker.alive": 1}, ""),  # beat is down: nothing to take
        ({"worker.alive": 1, "beat.alive": 60}, ""),
        ({"worker.alive": 1, "beat.alive": 1, "worker.received": 2}, ""),
        ({"worker.alive": 1, "beat.alive": 1}, "takes no tasks off its queue (none yet)"),
        (
            {"worker.alive": 1, "beat.alive": 1, "worker.received": 90},
            "takes no tasks off its queue (the last 90 s ago)",
        ),
    ],
)
def test_a_worker_must_beat_and_take_what_beat_sends(here: Places, ages, told):
    now = time.time()
    for name, age_s in ages.items():
        (here.run / name).touch()
        os.utime(here.run / name, (now - age_s, now - age_s))
    probe = {"kind": "worker", "target": str(here.run / "worker.alive"), "oldest_s": 15}
    assert health.ask(probe) == told


def _eventually(condition) -> bool:
    from stack import processes

    return processes.wait_until(condition, limit_s=20)
