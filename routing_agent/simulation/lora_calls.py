"""LoRA adapters in and out of a simulated engine, with vLLM's answers and refusals.

Files are looked at, not read into anything: a folder must have what an adapter has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from routing_agent.simulation.refusals import EngineRefusal, decoded
from routing_agent.simulation.requests import Limits

_CONFIG = "adapter_config.json"
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")


class _Load(msgspec.Struct, frozen=True):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class _Unload(msgspec.Struct, frozen=True):
    lora_name: str


class _Config(msgspec.Struct, frozen=True):
    r: Annotated[int, Meta(ge=1)]


def load(body: bytes, limits: Limits) -> str:
    """Take an adapter in and give its name, or raise the refusal vLLM would answer."""
    asked = decoded(body, _Load)
    name, path = asked.lora_name, asked.lora_path
    if not name or not path:
        raise _unfit("Both 'lora_name' and 'lora_path' must be provided.")
    if name == limits.model:
        raise _unfit(f"The lora adapter '{name}' conflicts with a served base model.")
    if name in limits.adapters and not asked.load_inplace:
        raise _unfit(
            f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
            "in place, set 'load_inplace' to True."
        )
    _check_files(name, Path(path), limits)
    limits.adapters[name] = path
    return name


def unload(body: bytes, limits: Limits) -> str:
    """Let an adapter go and give its name; what runs with it goes on to its end."""
    name = decoded(body, _Unload).lora_name
    if limits.adapters.pop(name, None) is None:
        raise EngineRefusal(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
    return name


def _check_files(name: str, folder: Path, limits: Limits) -> None:
    try:
        config = msgspec.json.decode((folder / _CONFIG).read_bytes(), type=_Config)
    except OSError as problem:
        message = f"Loading lora {name} failed: No adapter found for {folder}"
        raise EngineRefusal(404, message, "NotFoundError") from problem
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise _failed(f"{folder / _CONFIG}: {problem}") from problem
    if not any((folder / file).is_file() for file in _WEIGHTS):
        raise _failed(f"{folder} doesn't contain tensors")
    if config.r > limits.max_adapter_rank:
        most = limits.max_adapter_rank
        raise _failed(f"LoRA rank {config.r} is greater than max_lora_rank {most}.")


def _unfit(message: str) -> EngineRefusal:
    return EngineRefusal(400, message, "InvalidUserInput")


def _failed(why: str) -> EngineRefusal:
    message = (
        f"Call to add_lora method failed: Worker failed with error '{why}', please check the "
        "stack trace above for the root cause"
    )
    return EngineRefusal(500, message, "InternalServerError")
