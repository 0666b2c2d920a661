"""The command that starts an engine: words and environment, never a line for a shell.

Only options that are named here can be set. Values are checked, keys go by the environment wherever
the engine reads one there, so that no list of processes shows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from routing_agent.wire import EngineName

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Value = str | int | float | bool

VLLM_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # `MaxLoRARanks` of vLLM 0.32
# A word that no engine can take for an option, and that means the same whoever reads it.
_SAFE_TEXT: Final = re.compile(r"[\w./@:,=+][\w./@:,=+~ -]*", re.ASCII)
_SAFE_NAME: Final = re.compile(r"[\w./:-]{1,256}", re.ASCII)


class CommandRefused(ValueError):
    """These options give no command; the message says which one and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterOptions:
    """How much room there is for LoRA adapters."""

    max_rank: int = 64
    slots: int = 8  # in one batch
    max_loaded: int = 8  # in memory
    # Name -> file, for engines that load none later.
    fixed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """What an engine is to be, in the product's terms. `None` = the engine's own default."""

    model_path: str
    served_name: str
    port: int
    host: str = "127.0.0.1"
    context_tokens: int | None = None
    max_running: int | None = None
    max_queued: int | None = None  # None: no bound, the agent's queue is the bound
    memory_ratio: float | None = None  # share of the GPU's memory
    gpus: int = 1  # tensor parallel
    dtype: Dtype = "auto"
    prefix_cache: bool = True
    adapters: AdapterOptions | None = None
    may_sleep: bool = False
    drain_limit_s: float | None = None
    api_key: str = field(default="", repr=False)
    more: Mapping[str, Value] = field(default_factory=dict)  # by the engine's own option names


@dataclass(frozen=True, slots=True)
class StartCommand:
    """What to execute."""

    argv: tuple[str, ...] = field(repr=False)  # SGLang's key is among them: show `shown`
    environment: Mapping[str, str] = field(repr=False)  # beside the inherited one; may hold a key

    @property
    def shown(self) -> tuple[str, ...]:
        """The words as a person or a log may see them."""
        return tuple(
            "***" if before == "--api-key" else word
            for before, word in zip(("", *self.argv), self.argv, strict=False)
        )


# Further options of each engine that may be set, and what their value is.
ALLOWED: Final[Mapping[EngineName, Mapping[str, type]]] = {
    "vllm": {
        "--block-size": int, "--enable-chunked-prefill": bool, "--enforce-eager": bool,
        "--kv-cache-dtype": str, "--kv-events-config": str, "--max-loras": int,
        "--max-num-batched-tokens": int, "--max-num-seqs": int,
        "--num-gpu-blocks-override": int, "--pipeline-parallel-size": int, "--quantization": str,
        "--seed": int, "--tokenizer": str, "--tool-call-parser": str,
        "--enable-auto-tool-choice": bool, "--reasoning-parser": str,
    },
    "sglang": {
        "--attention-backend": str, "--chunked-prefill-size": int, "--device": str,
        "--disable-cuda-graph": bool, "--disable-overlap-schedule": bool,
        "--grammar-backend": str, "--kv-cache-dtype": str, "--kv-events-config": str,
        "--lora-backend": str, "--max-loras-per-batch": int, "--max-running-requests": int,
        "--max-total-tokens": int,
        "--quantization": str, "--reasoning-parser": str, "--sampling-backend": str,
        "--schedule-policy": str, "--tool-call-parser": str,
    },
    "llamacpp": {
        "--batch-size": int, "--flash-attn": str, "--n-gpu-layers": int, "--parallel": int,
        "--threads": int,
        "--ubatch-size": int, "--cache-type-k": str, "--cache-type-v": str, "--jinja": bool,
    },
    "tgi": {
        "--max-batch-prefill-tokens": int, "--max-batch-total-tokens": int,
        "--max-input-tokens": int, "--quantize": str,
    },
    "triton": {"--backend": str, "--tokenizer": str, "--tool-call-parser": str},
}  # fmt: skip


def start_command(engine: EngineName, options: StartOptions) -> StartCommand:
    """Give the command that starts `engine` as `options` say; CommandRefused if there is none."""
    build = _BUILDERS.get(engine)
    if build is None:
        raise CommandRefused(
            f"Nobody knows how to start an engine of kind '{engine}'. Start it yourself and"
            " register it as a replica that is only routed to."
        )
    _check(options)
    command = build(options)
    return StartCommand((*command.argv, *_more(engine, options.more)), command.environment)


def _vllm(options: StartOptions) -> StartCommand:
    room = options.adapters
    words = _words(
        ("vllm", "serve", options.model_path),
        {
            "--served-model-name": options.served_name,
            "--host": options.host,
            "--port": options.port,
            "--dtype": options.dtype,
            "--max-model-len": options.context_tokens,
            "--max-num-seqs": options.max_running,
            "--max-num-queued-reqs": options.max_queued,
            "--gpu-memory-utilization": options.memory_ratio,
            "--tensor-parallel-size": options.gpus,
            "--shutdown-timeout": options.drain_limit_s and int(options.drain_limit_s),
            "--enable-prefix-caching": options.prefix_cache,
            "--no-enable-prefix-caching": not options.prefix_cache,
            "--enable-prompt-tokens-details": True,  # cached tokens in `usage`
            "--enable-request-id-headers": True,
            "--enable-sleep-mode": options.may_sleep,
            "--enable-lora": room is not None,
            "--max-loras": room.slots if room else None,
            "--max-cpu-loras": room.max_loaded if room else None,
            "--max-lora-rank": _vllm_rank(room.max_rank) if room else None,
        },
    )  # fmt: skip
    environment = {
        "VLLM_API_KEY": options.api_key,
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True" if room else "",
        # It opens sleep, pause and reset to whoever reaches the port: bind it to loopback.
        "VLLM_SERVER_DEV_MODE": "1" if options.may_sleep else "",
    }
    if options.may_sleep and not _is_loopback(options.host):
        raise CommandRefused(
            "may_sleep opens vLLM's management calls to whoever reaches the port, so it needs host"
            f" 127.0.0.1, not {options.host}."
        )
    return StartCommand(words, _set_only(environment))


def _vllm_rank(rank: int) -> int:
    """Give the least rank that vLLM knows and that is not below `rank`."""
    for known in VLLM_RANKS:
        if rank <= known:
            return known
    raise CommandRefused(
        f"vLLM takes adapters of rank {VLLM_RANKS[-1]} at most, not {rank}: lower the pool's"
        " adapter_max_rank."
    )


def _sglang(options: StartOptions) -> StartCommand:
    room = options.adapters
    words = _words(
        ("python3", "-m", "sglang.launch_server"),
        {
            "--model-path": options.model_path,
            "--served-model-name": options.served_name,
            "--host": options.host,
            "--port": options.port,
            "--dtype": options.dtype,
            "--context-length": options.context_tokens,
            "--max-running-requests": options.max_running,
            "--max-queued-requests": options.max_queued,
            "--mem-fraction-static": options.memory_ratio,
            "--tp-size": options.gpus,
            "--enable-metrics": True,
            "--enable-cache-report": True,
            "--enable-memory-saver": options.may_sleep,
            "--disable-radix-cache": not options.prefix_cache,
            "--enable-lora": room is not None,
            "--max-lora-rank": room.max_rank if room else None,
            "--max-loras-per-batch": room.slots if room else None,
            "--max-loaded-loras": room.max_loaded if room else None,
            # All, else the first adapter fixes what the others may touch.
            "--lora-target-modules": "all" if room else None,
            # SGLang reads its key nowhere else.
            "--api-key": options.api_key or None,
        },
    )
    return StartCommand(words, {})


def _llamacpp(options: StartOptions) -> StartCommand:
    if options.gpus != 1:
        raise CommandRefused("llama.cpp spreads layers by itself: set gpus to 1.")
    if options.may_sleep:
        raise CommandRefused("llama.cpp cannot be put to sleep by a call: set may_sleep to false.")
    asked = options.more.get("--parallel")
    slots = asked if type(asked) is int else options.max_running or 1
    context = options.context_tokens
    words = _words(
        ("llama-server",),
        {
            "--model": options.model_path,
            "--alias": options.served_name,
            "--host": options.host,
            "--port": options.port,
            "--parallel": slots,
            "--ctx-size": None if context is None else context * slots,  # its unit is all slots
            "--metrics": True,
            "--slots": True,
            "--no-cache-prompt": not options.prefix_cache,
        },
    )
    fixed = options.adapters.fixed if options.adapters is not None else {}
    files = tuple(word for path in fixed.values() for word in ("--lora", _text("adapter", path)))
    return StartCommand((*words, *files), _set_only({"LLAMA_API_KEY": options.api_key}))


def _tgi(options: StartOptions) -> StartCommand:
    if options.may_sleep:
        raise CommandRefused("TGI cannot sleep: set may_sleep to false.")
    words = _words(
        ("text-generation-launcher",),
        {
            "--model-id": options.model_path,
            "--hostname": options.host,
            "--port": options.port,
            "--dtype": None if options.dtype == "auto" else options.dtype,
            "--max-total-tokens": options.context_tokens,
            "--max-batch-size": options.max_running,
            "--max-concurrent-requests": options.max_queued
            and options.max_queued + (options.max_running or 0),
            "--cuda-memory-fraction": options.memory_ratio,
            "--num-shard": options.gpus,
        },
    )
    fixed = options.adapters.fixed if options.adapters is not None else {}
    named = ",".join(f"{_name(n)}={_text('adapter', path)}" for n, path in fixed.items())
    environment = {"API_KEY": options.api_key, "LORA_ADAPTERS": named}
    return StartCommand(words, _set_only(environment))


def _triton(options: StartOptions) -> StartCommand:
    if options.api_key or options.may_sleep or options.adapters is not None:
        raise CommandRefused(
            "Triton's OpenAI frontend has neither key, sleep nor adapters by option: put adapters"
            " into the model repository and keep its port on loopback."
        )
    return StartCommand(
        _words(
            ("python3", "openai_frontend/main.py"),
            {
                "--model-repository": options.model_path,
                "--host": options.host,
                "--openai-port": options.port,
            },
        ),
        {},
    )


_BUILDERS: Final[Mapping[EngineName, Callable[[StartOptions], StartCommand]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llamacpp": _llamacpp,
    "tgi": _tgi,
    "triton": _triton,
}


def _check(options: StartOptions) -> None:
    """Hold what every engine takes against what it can be."""
    _text("model_path", options.model_path)
    _name(options.served_name)
    _text("host", options.host)
    if not 0 < options.port < 65536:
        raise CommandRefused(f"port {options.port} is none: use 1 to 65535.")
    if options.memory_ratio is not None and not 0 < options.memory_ratio <= 1:
        raise CommandRefused(f"memory_ratio {options.memory_ratio} is not between 0 and 1.")
    if any(not ch.isprintable() for ch in options.api_key):
        raise CommandRefused("api_key has characters that no header may carry.")
    counts = (options.context_tokens, options.max_running, options.max_queued, options.gpus)
    if any(count is not None and count < 1 for count in counts):
        raise CommandRefused("context_tokens, max_running, max_queued and gpus must be 1 or more.")


def _more(engine: EngineName, given: Mapping[str, Value]) -> tuple[str, ...]:
    allowed = ALLOWED[engine]
    for option, value in given.items():
        wanted = allowed.get(option)
        if wanted is None:
            raise CommandRefused(
                f"{option} cannot be set for {engine}. These can: {', '.join(sorted(allowed))}."
            )
        if type(value) is not wanted:
            raise CommandRefused(
                f"{option} takes a value of type {wanted.__name__}, not {value!r}."
            )
    return _words((), given)


def _words(start: tuple[str, ...], options: Mapping[str, Value | None]) -> tuple[str, ...]:
    """Give options as words: True is the option alone, False and None leave it out."""
    words = list(start)
    for option, value in options.items():
        if value is None or value is False:
            continue
        words.append(option)
        if value is not True:
            words.append(_text(option, value) if isinstance(value, str) else f"{value}")
    return tuple(words)


def _text(option: str, value: str) -> str:
    if option in ("--api-key", "--kv-events-config"):
        return value  # a key is checked apart; JSON begins with a brace
    if not _SAFE_TEXT.fullmatch(value):
        raise CommandRefused(
            f"{option} {value!r}: use letters, digits and ./@:,=+~- and begin with none of ~-."
        )
    return value


def _name(name: str) -> str:
    if not _SAFE_NAME.fullmatch(name) or name.startswith("-"):
        raise CommandRefused(f"'{name}' is no name of a model: use letters, digits and ./:_-.")
    return name


def _set_only(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if value}


def _is_loopback(host: str) -> bool:
    return host in ("127.0.0.1", "::1", "localhost")
