"""The foreground log is readable and loses no line."""

from __future__ import annotations

import json

from stack.follow import Follower, readable


def test_a_json_line_becomes_time_service_event_and_values():
    line = json.dumps(
        {"timestamp": "2026-01-02T03:04:05.6Z", "level": "info", "event": "table_applied",
         "logger": "x", "epoch": 7}
    )  # fmt: skip
    assert readable("agent-1", line) == "03:04:05 agent-1   table_applied epoch=7"


def test_a_warning_is_marked_and_other_lines_stay_as_they_are():
    line = json.dumps({"timestamp": "2026-01-02T03:04:05Z", "level": "warning", "event": "late"})
    assert readable("beat", line) == "03:04:05 beat      WARNING late"
    assert readable("redis", "Ready to accept connections").endswith("Ready to accept connections")
    assert readable("redis", "{not json").endswith("{not json")


def test_what_was_there_is_passed_over_and_half_a_line_waits_for_its_end(tmp_path):
    log = tmp_path / "web.log"
    log.write_text("old\n")
    follower = Follower(tmp_path, ["web", "worker"])
    with log.open("a") as sink:
        sink.write("new\nhal")
        sink.flush()
        assert _texts(follower) == ["new"]
        sink.write("f\n")
    assert _texts(follower) == ["half"]


def test_a_log_that_appears_later_or_is_rotated_is_read_from_its_start(tmp_path):
    follower = Follower(tmp_path, ["web"])
    assert _texts(follower) == []
    log = tmp_path / "web.log"
    log.write_text("a first line\n")
    assert _texts(follower) == ["a first line"]
    log.rename(tmp_path / "web.log.1")
    log.write_text("next\n")
    assert _texts(follower) == ["next"]


def _texts(follower: Follower) -> list[str]:
    return [line.split(maxsplit=2)[2] for line in follower.lines()]  # without time and service
