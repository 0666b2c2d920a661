"""One death is one death, and nothing is ever left behind."""

from __future__ import annotations

import os
import signal

from stack import down, processes

from tests.commands.conftest import SERVE, SmallStack

STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
)
WITH_A_CHILD = (
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); time.sleep(600)"
)


def wait(condition: object) -> bool:
    return processes.wait_until(condition, limit_s=20)  # type: ignore[arg-type]


def test_a_killed_service_comes_back_and_its_neighbour_does_not_notice(small_stack: SmallStack):
    small_stack.add("one", SERVE)
    small_stack.add("two", SERVE)
    small_stack.start()
    one, two = small_stack.pid("one"), small_stack.pid("two")
    os.kill(one, signal.SIGKILL)
    assert wait(lambda: small_stack.pid("one") not in (one, None))
    assert small_stack.pid("two") == two


def test_the_pid_is_the_service_itself_and_it_leads_its_own_group(small_stack: SmallStack):
    small_stack.add("one", SERVE)
    supervisor = small_stack.start()
    pid = small_stack.pid("one")
    assert supervisor.processes()["one"]["pid"] == pid == os.getpgid(pid)
    assert wait(lambda: b"http.server" in processes.PROC.joinpath(str(pid), "cmdline").read_bytes())


def test_a_service_sees_only_the_environment_made_for_it(small_stack: SmallStack, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    small_stack.add("one", SERVE)
    small_stack.start()
    environ = processes.PROC.joinpath(str(small_stack.pid("one")), "environ")
    assert wait(lambda: b"ONLY=this" in environ.read_bytes())
    assert b"secret" not in environ.read_bytes()


def test_what_a_killed_service_leaves_in_its_group_is_gone_when_it_is_back(small_stack: SmallStack):
    small_stack.add("parent", WITH_A_CHILD)
    small_stack.start()
    leader = small_stack.pid("parent")
    assert wait(lambda: len(processes.group_members(leader)) == 2)
    os.kill(leader, signal.SIGKILL)
    assert wait(lambda: small_stack.pid("parent") not in (leader, None))
    assert wait(lambda: processes.group_members(leader) == [])


def test_a_service_held_down_stays_down_until_it_is_brought_back(small_stack: SmallStack):
    small_stack.add("one", SERVE)
    supervisor = small_stack.start()
    down.hold(small_stack.here, "one")
    assert small_stack.pid("one") is None
    assert supervisor.processes()["one"]["statename"] == "STOPPED"
    supervisor.start("one")
    assert wait(lambda: small_stack.pid("one"))


def test_down_leaves_nothing_even_of_a_service_that_ignores_the_signal(small_stack: SmallStack):
    small_stack.add("stubborn", STUBBORN)
    small_stack.add("parent", WITH_A_CHILD)
    small_stack.start()
    groups = [small_stack.pid("stubborn"), small_stack.pid("parent")]
    down.stop_all(small_stack.here)
    assert small_stack.living() == []
    assert [processes.group_members(group) for group in groups] == [[], []]
    assert not small_stack.here.supervisor_socket.exists()


def test_down_finds_the_orphans_of_a_killed_supervisor(small_stack: SmallStack):
    small_stack.add("one", SERVE)
    small_stack.add("parent", WITH_A_CHILD)
    small_stack.start()
    assert wait(lambda: len(small_stack.living()) == 4)
    supervisor = next(r for r in small_stack.living() if r.name == "supervisor")
    os.kill(supervisor.pid, signal.SIGKILL)
    assert wait(lambda: len(small_stack.living()) == 3)
    down.stop_all(small_stack.here)
    assert small_stack.living() == []


def test_down_copes_with_a_frozen_supervisor(small_stack: SmallStack, monkeypatch):
    monkeypatch.setattr(down, "ANSWER_LIMIT_S", 0.3)
    small_stack.add("one", SERVE)
    small_stack.start()
    supervisor = next(r for r in small_stack.living() if r.name == "supervisor")
    os.kill(supervisor.pid, signal.SIGSTOP)
    down.stop_all(small_stack.here)
    assert small_stack.living() == []
