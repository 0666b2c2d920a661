"""The matrices of a LoRA adapter against its configuration and what is known of its base model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controlplane.domain.adapter_configs import Shape, is_end_of
from controlplane.domain.errors import Invalid
from controlplane.domain.safetensors import FILE, Tensor

_NAME: Final = re.compile(r"base_model\.model\.([A-Za-z0-9_.]{1,400})\.lora_([AB])\.weight\Z")
_LAYER: Final = re.compile(r"(?:\A|\.)(?:layers|h|blocks)\.(\d{1,6})\.")
_TOWER: Final = re.compile(r"vis(?:ion|ual)|audio")  # other layers, other widths
# SGLang serves these two as one: with one of them alone its process dies at the first request.
_FUSED: Final = ("gate_proj", "up_proj")


@dataclass(frozen=True, slots=True)
class Module:
    """One trained module: A is rank x in, B is out x rank."""

    rank: int
    width_in: int
    width_out: int


def modules_of(tensors: Mapping[str, Tensor]) -> dict[str, Module]:
    """Give the trained modules by path.

    Raises:
        Invalid: naming a tensor that is no LoRA matrix, or a module that lacks one of its two.
    """
    halves: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.match(name)
        if match is None:
            raise _fault(
                f"has the tensor {name[:200]!r}, which is no LoRA matrix of PEFT "
                "(base_model.model.….lora_A.weight): engines would refuse it or leave it out"
            )
        if len(tensor.shape) != 2 or 0 in tensor.shape:
            raise _fault(f"has {name[:200]!r} of shape {list(tensor.shape)}, which is no matrix")
        halves.setdefault(match[1], {})[match[2]] = tensor
    return {path: _module(path, half) for path, half in sorted(halves.items())}


def _module(path: str, half: Mapping[str, Tensor]) -> Module:
    if len(half) != 2:
        raise _fault(f"has only one of the two matrices of {path}")
    (rank, width_in), (width_out, rank_b) = half["A"].shape, half["B"].shape
    if rank != rank_b:
        raise _fault(f"has matrices of ranks {rank} and {rank_b} for {path}")
    return Module(rank=rank, width_in=width_in, width_out=width_out)


def kinds_of(modules: Iterable[str]) -> tuple[str, ...]:
    """Give the last parts of modules' paths, each once: q_proj, v_proj."""
    return tuple(sorted({path.rsplit(".", 1)[-1] for path in modules}))


def check_shape(modules: Mapping[str, Module], shape: Shape) -> None:
    """Check ranks and names against the configuration.

    Raises:
        Invalid: naming the first module that differs from it.
    """
    for path, module in modules.items():
        wanted = shape.rank_of(path)
        if module.rank != wanted:
            raise _fault(f"has rank {module.rank} for {path}; the configuration says {wanted}")
        targets = shape.target_modules
        if targets is not None and not any(is_end_of(target, path) for target in targets):
            raise _fault(f"has matrices for {path}, which target_modules does not name")


def check_base(
    modules: Mapping[str, Module],
    *,
    layers: int | None,
    kv_width: int | None,
    engines: frozenset[str],
) -> None:
    """Check modules against what is known of the base model and its engines.

    Raises:
        Invalid: naming the first module that cannot belong to it.
    """
    for path, module in modules.items():
        if _TOWER.search(path):
            continue
        layer = _LAYER.search(path)
        if layer is not None and layers is not None and int(layer[1]) >= layers:
            raise _fault(f"has {path}, and the base model has {layers} layers")
        if kv_width is None or kinds_of([path])[0] not in {"k_proj", "v_proj"}:
            continue
        if module.width_out != kv_width:
            raise _fault(
                f"has {path} with {module.width_out} outputs; the base model has {kv_width}"
            )
    if "sglang" in engines:
        _check_fused(modules)


def _check_fused(modules: Mapping[str, Module]) -> None:
    for path in modules:
        parent, _, kind = path.rpartition(".")
        if kind not in _FUSED:
            continue
        other = _FUSED[kind == _FUSED[0]]
        if f"{parent}.{other}" not in modules:
            raise _fault(
                f"has {path} without {parent}.{other}: the SGLang engines of this model would die "
                f"of it. Train both, or neither"
            )


def _fault(said: str) -> Invalid:
    return Invalid(f"{FILE} {said}.", field=FILE)
