"""Knowing one's own processes from others'."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from stack import processes

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_pid_that_was_given_to_another_process_is_not_ours():
    ours = processes.describe("me", os.getpid())
    assert processes.is_alive(ours)
    assert not processes.is_alive(replace(ours, started="12345"))


def test_a_finished_process_that_nobody_has_waited_for_counts_as_gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    assert processes.wait_until(lambda: processes.start_mark(child.pid) is None, limit_s=10)
    child.wait()


def test_a_record_cut_short_by_a_crash_is_passed_over(tmp_path):
    ours = processes.describe("me", os.getpid())
    processes.save_record(tmp_path, ours)
    (tmp_path / "half.pid.json").write_text('{"name": "ha')
    (tmp_path / "old.pid.json").write_text('{"pid": 1}')
    assert processes.saved_records(tmp_path) == [ours]


def test_a_process_is_found_by_the_mark_in_its_environment_alone(tmp_path):
    environment = {**os.environ, processes.STACK_VARIABLE: "made-for-this-test"}
    child = subprocess.Popen(SLEEP, env=environment)
    try:
        assert processes.wait_until(
            lambda: processes.marked_pids("made-for-this-test") == [child.pid], limit_s=10
        )
        assert [r.pid for r in processes.living(tmp_path, "made-for-this-test")] == [child.pid]
        assert processes.marked_pids("made-for-this") == []
    finally:
        child.kill()
        child.wait()
