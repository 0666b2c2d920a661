"""The control plane's clock as an agent knows it."""

from __future__ import annotations

import pytest

from routing_agent.control.clock import ControlClock, this_boot

SERVER = 1_800_000_000.0


class Machine:
    """A machine whose clocks are moved by hand."""

    def __init__(self, tmp_path):
        self.path = tmp_path / "clock.json"
        self.mono = 100.0
        self.wall_error_s = 0.0
        self.boot = "boot-1"

    def wall(self):
        return SERVER + self.mono - 100.0 + self.wall_error_s

    def server_time(self):
        return SERVER + self.mono - 100.0

    def start(self):
        return ControlClock(
            self.path, monotonic=lambda: self.mono, wall=self.wall, boot_id=self.boot
        )

    def contact(self, clock):
        clock.learn(self.server_time(), asked_at=self.mono, answered_at=self.mono)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_before_any_contact_the_wall_clock_must_do(machine):
    machine.wall_error_s = 600
    clock = machine.start()
    assert clock.source == "wall"
    assert clock.now() == pytest.approx(machine.server_time() + 600)


def test_the_middle_of_a_call_is_when_the_reply_was_true(machine):
    clock = machine.start()
    clock.learn(SERVER, asked_at=100.0, answered_at=100.4)
    machine.mono = 100.4
    assert clock.now() == pytest.approx(SERVER + 0.2)


@pytest.mark.parametrize("error_s", [600.0, -600.0])
def test_a_skewed_wall_clock_is_no_matter_after_contact_nor_after_a_restart(machine, error_s):
    machine.wall_error_s = error_s
    machine.contact(machine.start())
    machine.mono += 3600
    restarted = machine.start()
    assert restarted.source == "kept"
    assert restarted.now() == pytest.approx(machine.server_time())


def test_a_step_of_the_wall_clock_changes_nothing_while_running_or_after_a_restart(machine):
    clock = machine.start()
    machine.contact(clock)
    machine.wall_error_s = 3600
    assert clock.now() == pytest.approx(machine.server_time())
    assert machine.start().now() == pytest.approx(machine.server_time())


def test_after_a_reboot_a_constant_skew_of_the_wall_clock_is_cancelled(machine):
    machine.wall_error_s = -600
    machine.contact(machine.start())
    machine.boot, machine.mono = "boot-2", 160.0
    rebooted = machine.start()
    assert rebooted.source == "kept_wall"
    assert rebooted.now() == pytest.approx(machine.server_time())


def test_a_slow_reply_teaches_nothing_once_the_time_is_known(machine):
    clock = machine.start()
    machine.contact(clock)
    clock.learn(SERVER + 500, asked_at=100.0, answered_at=130.0)
    assert clock.now() == pytest.approx(machine.server_time())


def test_the_estimate_is_written_once_not_at_every_contact(machine):
    clock = machine.start()
    machine.contact(clock)
    machine.path.unlink()
    machine.mono += 2
    machine.contact(clock)
    assert not machine.path.exists()


def test_a_corrupt_file_is_set_aside_and_the_agent_starts(machine):
    machine.path.write_text("{")
    assert machine.start().source == "wall"
    assert machine.path.with_name("clock.json.corrupt").exists()


def test_a_file_that_cannot_be_written_is_no_reason_to_stop(tmp_path):
    clock = ControlClock(tmp_path / "missing" / "clock.json")
    clock.learn(SERVER, asked_at=1.0, answered_at=1.0)
    assert clock.source == "contact"


def test_this_machine_has_a_boot():
    assert this_boot() == this_boot()
