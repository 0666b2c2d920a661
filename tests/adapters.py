"""LoRA adapters as PEFT writes them, made by hand: no tensor library, a few hundred bytes each."""

from __future__ import annotations

import io
import json
import math
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

BASE = "m"
WIDTH = 16
_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I8": 1}


def config(**given: Any) -> dict[str, Any]:
    """A configuration of rank 8 for model `m`."""
    return {
        "base_model_name_or_path": BASE,
        "bias": "none",
        "lora_alpha": 16,
        "peft_type": "LORA",
        "r": 8,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
    } | given


def config_bytes(**given: Any) -> bytes:
    """The same as a file."""
    return json.dumps(config(**given)).encode()


def name_of(module: str, half: str = "A", layer: int = 0) -> str:
    """The name of a matrix of a module."""
    part = "mlp" if module in {"gate_proj", "up_proj", "down_proj"} else "self_attn"
    return f"base_model.model.model.layers.{layer}.{part}.{module}.lora_{half}.weight"


def shapes(
    modules: Sequence[str] = ("q_proj", "v_proj"),
    *,
    rank: int = 8,
    layers: int = 1,
    out: int = WIDTH,
) -> dict[str, list[int]]:
    """The shapes of an adapter's matrices."""
    found: dict[str, list[int]] = {}
    for layer in range(layers):
        for module in modules:
            found[name_of(module, "A", layer)] = [rank, WIDTH]
            found[name_of(module, "B", layer)] = [out, rank]
    return found


def header(tensors: Mapping[str, Sequence[int]], dtype: str = "BF16") -> dict[str, Any]:
    """The header of a safetensors file, its tensors one after the other."""
    told: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        begin, end = end, end + math.prod(shape) * _BYTES[dtype]
        told[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    return told


def written(told: Any, data: bytes | None = None) -> bytes:
    """A safetensors file with this header; without data as many bytes as it says."""
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    if data is None:
        ends = [t["data_offsets"][1] for n, t in told.items() if n != "__metadata__"]
        data = bytes(max(ends, default=0))
    return len(text).to_bytes(8, "little") + text + data


def weights(modules: Sequence[str] = ("q_proj", "v_proj"), *, fill: int = 0, **given: Any) -> bytes:
    """A sound safetensors file; another `fill` makes another file."""
    told = header(shapes(modules, **given))
    content = bytearray(written(told))
    content[-1] = fill
    return bytes(content)


def zipped(entries: Mapping[str, bytes]) -> bytes:
    """A .zip archive with these entries, under whatever names."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def tarred(entries: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    """A .tar or .tar.gz archive with these entries, under whatever names."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def keep(tenant: str = "acme", name: str = "sql", *, fill: int = 0, model: str = BASE) -> Any:
    """Upload a sound adapter through the services and give its row."""
    from controlplane.catalog import services
    from controlplane.catalog.uploads import Incoming
    from tests.factories import ACTOR, WHY

    files = {
        "adapter_config.json": config_bytes(base_model_name_or_path=model),
        "adapter_model.safetensors": weights(fill=fill),
    }
    sent = [Incoming(file, io.BytesIO(content)) for file, content in files.items()]
    wanted = services.Wanted(tenant=tenant, name=name, model=model)
    with services.received(wanted=wanted, uploaded=sent, actor=ACTOR) as received:
        return services.add_version(upload=received, **WHY)
