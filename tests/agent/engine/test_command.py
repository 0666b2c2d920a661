"""Start commands: words for exec, options that are allowed, keys out of sight."""

from __future__ import annotations

import pytest

from routing_agent.engine.command import (
    ALLOWED,
    AdapterOptions,
    CommandRefused,
    StartOptions,
    start_command,
)


def options(**given):
    defaults = {"model_path": "/models/tiny", "served_name": "tiny", "port": 8301}
    return StartOptions(**(defaults | given))


def pairs(command):
    """Options with the word after each."""
    return dict(zip(command.argv, command.argv[1:], strict=False))


def test_vllm_gets_every_option_in_its_own_words():
    command = start_command(
        "vllm",
        options(
            context_tokens=2048,
            max_running=4,
            max_queued=6,
            gpus=2,
            drain_limit_s=5.0,
            adapters=AdapterOptions(max_rank=16, slots=2, max_loaded=4),
            more={"--block-size": 32, "--enforce-eager": True},
        ),
    )
    assert command.argv[:3] == ("vllm", "serve", "/models/tiny")
    found = pairs(command)
    assert found["--served-model-name"] == "tiny"
    assert (found["--max-model-len"], found["--max-num-seqs"]) == ("2048", "4")
    assert (found["--max-num-queued-reqs"], found["--shutdown-timeout"]) == ("6", "5")
    assert (found["--max-loras"], found["--max-lora-rank"]) == ("2", "16")
    assert found["--block-size"] == "32"
    assert command.argv[-1] == "--enforce-eager"
    assert command.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "VLLM_SERVER_DEV_MODE" not in command.environment


@pytest.mark.parametrize(("rank", "told"), [(1, "1"), (2, "8"), (64, "64"), (65, "128")])
def test_vllm_is_told_a_rank_that_it_knows(rank, told):
    command = start_command("vllm", options(adapters=AdapterOptions(max_rank=rank)))
    assert pairs(command)["--max-lora-rank"] == told


def test_a_rank_above_all_that_vllm_knows_is_refused_with_the_setting_to_change():
    with pytest.raises(CommandRefused, match="lower the pool's adapter_max_rank"):
        start_command("vllm", options(adapters=AdapterOptions(max_rank=600)))


def test_sglang_is_started_with_metrics_and_room_for_every_target_module():
    command = start_command("sglang", options(adapters=AdapterOptions(max_rank=16)))
    assert "--enable-metrics" in command.argv
    assert pairs(command)["--lora-target-modules"] == "all"


def test_llama_cpp_is_told_the_context_of_all_slots_and_its_fixed_adapters():
    fixed = AdapterOptions(fixed={"a": "/models/a.gguf"})
    command = start_command(
        "llamacpp", options(context_tokens=2048, max_running=3, adapters=fixed, api_key="k")
    )
    found = pairs(command)
    assert (found["--ctx-size"], found["--parallel"]) == ("6144", "3")
    assert found["--lora"] == "/models/a.gguf"
    assert command.environment == {"LLAMA_API_KEY": "k"}


def test_llama_cpp_gives_each_of_the_slots_that_a_version_asks_for_its_whole_context():
    command = start_command("llamacpp", options(context_tokens=2048, more={"--parallel": 4}))
    found = pairs(command)
    assert (found["--ctx-size"], found["--parallel"]) == ("8192", "4")


def test_tgi_and_triton_have_commands_too():
    tgi = start_command("tgi", options(adapters=AdapterOptions(fixed={"a": "/models/a"})))
    assert tgi.argv[0] == "text-generation-launcher"
    assert tgi.environment == {"LORA_ADAPTERS": "a=/models/a"}
    triton = start_command("triton", options(more={"--tokenizer": "/models/tiny"}))
    assert pairs(triton)["--tokenizer"] == "/models/tiny"


@pytest.mark.parametrize("engine", ["vllm", "llamacpp", "tgi", "sglang"])
def test_a_key_is_never_shown(engine):
    command = start_command(engine, options(api_key="s3cret"))
    assert "s3cret" not in repr(command)
    assert "s3cret" not in repr(options(api_key="s3cret"))
    assert "s3cret" not in " ".join(command.shown)
    assert engine == "sglang" or "s3cret" not in command.argv  # SGLang reads it nowhere else


@pytest.mark.parametrize(
    ("engine", "given", "why"),
    [
        ("openai", {}, "Nobody knows how"),
        ("vllm", {"more": {"--api-key": "x"}}, "cannot be set"),
        ("vllm", {"more": {"--block-size": "32"}}, "of type int"),
        ("vllm", {"more": {"--seed": True}}, "of type int"),
        ("vllm", {"model_path": "--trust-remote-code"}, "begin with none"),
        ("vllm", {"model_path": "/m; rm -rf"}, "use letters"),
        ("vllm", {"served_name": "a b"}, "no name of a model"),
        ("vllm", {"served_name": "-x"}, "no name of a model"),
        ("vllm", {"host": "$(id)"}, "use letters"),
        ("vllm", {"host": "0.0.0.0", "may_sleep": True}, "127.0.0.1"),
        ("vllm", {"port": 0}, "1 to 65535"),
        ("vllm", {"memory_ratio": 1.5}, "between 0 and 1"),
        ("vllm", {"max_running": 0}, "1 or more"),
        ("vllm", {"api_key": "a\r\nb"}, "no header"),
        ("llamacpp", {"gpus": 2}, "gpus to 1"),
        ("llamacpp", {"may_sleep": True}, "may_sleep to false"),
        ("tgi", {"may_sleep": True}, "may_sleep to false"),
        ("triton", {"api_key": "k"}, "neither key"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_do(engine, given, why):
    with pytest.raises(CommandRefused, match=why):
        start_command(engine, options(**given))


def test_a_sleeping_vllm_needs_its_management_calls_on_loopback():
    command = start_command("vllm", options(may_sleep=True))
    assert command.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "--enable-sleep-mode" in command.argv


@pytest.mark.parametrize("engine", sorted(ALLOWED))
def test_every_word_is_a_word_of_its_own(engine):
    words = start_command(engine, options()).argv
    assert all(word and "\n" not in word for word in words)
    assert words.count("--port") + words.count("--openai-port") == 1
