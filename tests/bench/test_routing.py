"""The benchmarks of routing: they run, name what they measured, refuse what they do not know."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import ModuleType

import pytest

from bench import choosing, routing
from routing_agent.core.choose import POLICIES


def run(module: ModuleType, *words: object) -> int:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return int(module.main(parser.parse_args([str(word) for word in words])))


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    rows = [
        {"timestamp": n * 400, "input_length": 1024, "output_length": 9, "hash_ids": [0, n % 7]}
        for n in range(60)
    ]
    (tmp_path / "mooncake").mkdir()
    file = tmp_path / "mooncake" / "conversation_trace.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


def test_each_cell_has_a_row_for_each_policy(traces, capsys):
    words = (traces, "--traces", "conversation,conversation-held-out", "--replicas", "3",
             "--cache-blocks", 50, "--views", "oracle,4-agents")  # fmt: skip
    assert run(routing, *words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2 * 2 * len(POLICIES)
    assert {row["trace"] for row in rows} == {"conversation", "conversation-held-out"}
    assert all(0 <= row["hit_rate"] < 1 for row in rows)
    assert run(routing, *words, "--policies", "expected_ttft") == 0
    assert "conversation, 3 replicas, 50 blocks, 4-agents, 70% uncached" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--traces", "--policies", "--views"])
def test_what_is_not_known_is_refused(traces, capsys, option):
    assert run(routing, traces, option, "nonsense") == 2
    assert "there is no 'nonsense'; known: " in capsys.readouterr().err


def test_a_choice_is_measured_for_each_policy_and_size(capsys):
    words = ("--replicas", "2,40", "--blocks", 4, "--seconds", 0.0001)
    assert run(choosing, *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len(POLICIES) + 2
    assert all(set(found[f"{policy}, 4 blocks"]) == {"2", "40"} for policy in POLICIES)
    assert run(choosing, *words) == 0
    assert "expected_ttft, 4 blocks" in capsys.readouterr().out
