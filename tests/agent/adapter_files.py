"""Adapters as a control plane gives them out: bytes, their hashes, their place in a table."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from routing_agent import wire
from tests.fakes.control_plane import FakeControlPlane


def package(
    name: str = "sql", *, tenant: str = "acme", size: int = 2000, **changes: Any
) -> tuple[wire.Adapter, dict[str, bytes]]:
    """Make an adapter of `size` bytes, unlike any of another name, and its files."""
    weights = (hashlib.sha256(f"{tenant}/{name}".encode()).digest() * (size // 32 + 1))[:size]
    files = {
        "adapter_config.json": json.dumps({"r": 8, "peft_type": "LORA"}).encode(),
        "adapter_model.safetensors": weights,
    }
    told = tuple(
        wire.AdapterFile(
            name=file, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
        )
        for file, content in files.items()
    )
    digest = hashlib.sha256("".join(f.sha256 for f in told).encode()).hexdigest()
    fields = {
        "name": name, "tenant": tenant, "model": "m", "digest": digest, "files": told,
        "served_name": f"{tenant}.{name}.{digest[:12]}", "size_bytes": size, "rank": 8,
    }  # fmt: skip
    return wire.Adapter(**{**fields, **changes}), files


def publish(control_plane: FakeControlPlane, *names: str, **changes: Any) -> list[wire.Adapter]:
    """Let a control plane give out adapters of these names."""
    adapters = []
    for name in names:
        adapter, files = package(name, **changes)
        control_plane.files |= {(adapter.digest, file): data for file, data in files.items()}
        adapters.append(adapter)
    return adapters
