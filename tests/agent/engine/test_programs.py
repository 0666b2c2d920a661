"""The command that an action becomes, by the agent's own configuration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from routing_agent.engine.programs import EngineRules
from routing_agent.wire import StartEngine


@pytest.fixture
def rules(tmp_path: Path) -> EngineRules:
    (tmp_path / "tiny").mkdir()
    programs = dict.fromkeys(("simulated", "vllm", "sglang", "llamacpp"), sys.executable)
    return EngineRules(programs=programs, first_port=8400, last_port=8409, folders=(tmp_path,))


def words(rules: EngineRules, program: Any, **given: Any) -> dict[str, str]:
    """Give each option with the word after it, or what follows its `=`."""
    wanted = StartEngine(
        replica="rpl-1", program=program, served_name="m", port=8400, model_source="tiny", **given
    )
    argv = rules.command(wanted).argv
    apart = [part for word in argv for part in word.split("=", 1)]
    return dict(zip(apart, [*apart[1:], ""], strict=True))


@pytest.mark.parametrize(
    ("program", "in_batch", "loaded"),
    [
        ("vllm", "--max-loras", "--max-cpu-loras"),
        ("simulated", "--max-loras", "--max-cpu-loras"),
        ("sglang", "--max-loras-per-batch", "--max-loaded-loras"),
    ],
)
def test_room_for_adapters_is_as_asked_and_a_batch_takes_eight_at_most(
    rules, program, in_batch, loaded
):
    few = words(rules, program, adapter_slots=3, adapter_max_rank=32)
    assert (few[in_batch], few[loaded], few["--max-lora-rank"]) == ("3", "3", "32")
    many = words(rules, program, adapter_slots=40, adapter_max_rank=32)
    assert (many[in_batch], many[loaded]) == ("8", "40")
    assert not {"--enable-lora", in_batch, loaded} & set(words(rules, program))


def test_an_engine_without_gpus_is_told_no_share_of_their_memory(rules):
    assert words(rules, "vllm", gpus=(0,), memory_ratio=0.5)["--gpu-memory-utilization"] == "0.5"
    assert "--gpu-memory-utilization" not in words(rules, "vllm", memory_ratio=0.5)


def test_an_engine_that_takes_adapters_at_its_start_only_is_started_without(rules):
    assert "--lora" not in words(rules, "llamacpp", adapter_slots=3)
