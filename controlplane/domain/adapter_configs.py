"""What PEFT's `adapter_config.json` must say. Every fault names its field.

Refused is what engines refuse, and what they would ignore although the adapter was trained with it:
then its answers would be silently wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from controlplane.domain.errors import Invalid

# Real ones have 0.4 to 1.2 KB; one that lists every module of a large model has some hundred KB.
CONFIG_LIMIT_BYTES: Final = 1024 * 1024
_GIT_LFS: Final = b"version https://git-lfs"

# Fields that must be absent, null, false or empty, with what to do.
_UNSUPPORTED: Final[Mapping[str, str]] = {
    "modules_to_save": "whole layers trained beside LoRA are no adapter; train without them",
    "layer_replication": "engines cannot repeat layers for one adapter",
    "alora_invocation_tokens": "activated LoRA is not supported by engines",
    "trainable_token_indices": "trained token embeddings would be ignored",
    "target_parameters": "LoRA on bare parameters is not supported by engines",
    "enable_lora": "partly merged layers of old PEFT versions are not supported",
    "lora_bias": "engines do not support LoRA bias; train with lora_bias false",
    "arrow_config": "routing between adapters is not supported by engines",
}
# vLLM accepts these (its PEFT checks); the others change the base weights as well.
_INITS: Final = (True, False, "gaussian", "eva", "orthogonal", "mica", "lora_ga")
_TASKS: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": ("CAUSAL_LM",),
    "embedding": ("FEATURE_EXTRACTION", "CAUSAL_LM"),
}
_LITERAL_KEY: Final = re.compile(r"[A-Za-z0-9_.]{1,400}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the configuration says of the matrices."""

    r: int
    rank: int  # the largest: of `r` and of all patterns
    alpha: float
    rank_pattern: Mapping[str, int]
    target_modules: tuple[str, ...] | None  # None: told by a pattern, which is not tried

    def rank_of(self, module: str) -> int:
        """Give the rank of one module: a pattern's key is its name or the end of it at a dot."""
        for key, rank in self.rank_pattern.items():
            if is_end_of(key, module):
                return rank
        return self.r


def is_end_of(name: str, module: str) -> bool:
    """Say whether `name` is a module's path or its last parts."""
    return module == name or module.endswith(f".{name}")


def parsed(content: bytes) -> dict[str, Any]:
    """Read the configuration.

    Raises:
        Invalid: when it is too large or no JSON object.
    """
    file = "adapter_config.json"
    if len(content) > CONFIG_LIMIT_BYTES:
        raise Invalid(f"{file} is above {CONFIG_LIMIT_BYTES} bytes.", field=file)
    if content.startswith(_GIT_LFS):
        raise Invalid(
            f"{file} is a Git LFS pointer, not the file itself: run `git lfs pull` first.",
            field=file,
        )
    try:
        config = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{file} is not JSON: {error}.", field=file) from error
    if not isinstance(config, dict):
        raise Invalid(f"{file} must be a JSON object.", field=file)
    return config


def shape_of(config: Mapping[str, Any], max_rank: int) -> Shape:
    """Give what the configuration says of the matrices.

    Raises:
        Invalid: naming the first field that is wrong or above `max_rank`.
    """
    r: Any = config.get("r")
    if not _is_whole(r) or r < 1:
        raise Invalid(f"r must be a whole number of at least 1, not {r!r}.", field="r")
    pattern = _pattern(config, "rank_pattern")
    for key, rank in pattern.items():
        if not _is_whole(rank) or rank < 1:
            raise Invalid(
                f"rank_pattern.{key} must be a whole number of at least 1, not {rank!r}.",
                field="rank_pattern",
            )
    rank = max(r, *pattern.values()) if pattern else r
    if rank > max_rank:
        raise Invalid(
            f"The rank {rank} exceeds {max_rank}, the most that any pool of this model allows. "
            f"Retrain at {max_rank} or ask for a pool that allows it.",
            field="r" if rank == r else "rank_pattern",
        )
    return Shape(
        r=r,
        rank=rank,
        alpha=_alpha(config),
        rank_pattern=pattern,
        target_modules=_targets(config.get("target_modules")),
    )


def _alpha(config: Mapping[str, Any]) -> float:
    alpha = config.get("lora_alpha", 8)  # PEFT's default
    if not _is_number(alpha) or alpha <= 0:
        raise Invalid(f"lora_alpha must be a number above 0, not {alpha!r}.", field="lora_alpha")
    for key, value in _pattern(config, "alpha_pattern").items():
        if not _is_number(value) or value <= 0:
            raise Invalid(
                f"alpha_pattern.{key} must be a number above 0, not {value!r}.",
                field="alpha_pattern",
            )
    return float(alpha)


def _pattern(config: Mapping[str, Any], field: str) -> dict[str, Any]:
    pattern = config.get(field) or {}
    if not isinstance(pattern, dict):
        raise Invalid(f"{field} must be an object, not {pattern!r}.", field=field)
    for key in pattern:
        if not _LITERAL_KEY.match(key):
            raise Invalid(
                f"{field} has the key {key[:100]!r}: only names of modules are taken, "
                "no expressions.",
                field=field,
            )
    return pattern


def _targets(given: Any) -> tuple[str, ...] | None:
    field = "target_modules"
    if isinstance(given, str) and given:
        return None
    if not isinstance(given, list) or not given:
        raise Invalid(
            f"{field} must list the modules that were trained, not {given!r}.", field=field
        )
    for name in given:
        if not isinstance(name, str) or not _LITERAL_KEY.match(name):
            raise Invalid(f"{field} contains {str(name)[:100]!r}, no module name.", field=field)
    return tuple(given)


def check_method(config: Mapping[str, Any], kind: str) -> str:
    """Check that it is plain LoRA for a model of this kind; say what it is.

    Raises:
        Invalid: naming the first field that asks for something else.
    """
    if config.get("peft_type") != "LORA":
        raise Invalid(
            f"peft_type must be 'LORA', not {config.get('peft_type')!r}.", field="peft_type"
        )
    for field, advice in _UNSUPPORTED.items():
        if config.get(field):
            raise Invalid(f"{field} is set: {advice}.", field=field)
    for field, value in config.items():
        if field.startswith("use_") and field != "use_rslora" and value:
            raise Invalid(
                f"{field} is set: engines support plain LoRA and rsLoRA only.", field=field
            )
    _one_of(config, "bias", ("none", None), "engines load no biases; train with bias 'none'")
    _one_of(config, "init_lora_weights", _INITS, "it changes the base weights too; convert it")
    _one_of(config, "use_rslora", (True, False, None), "it is true or false")
    _one_of(config, "task_type", (*_TASKS.get(kind, ()), None), f"the model is for {kind}")
    return "rsLoRA" if config.get("use_rslora") else "LoRA"


def _one_of(config: Mapping[str, Any], field: str, allowed: tuple[Any, ...], why: str) -> None:
    if field not in config:
        return
    value = config[field]
    # 1 == True in Python, and not here.
    if not any(value == known and type(value) is type(known) for known in allowed):
        raise Invalid(f"{field} is {value!r}: {why}.", field=field)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
