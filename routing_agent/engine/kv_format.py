"""Reads the events that vLLM and SGLang publish of their KV caches.

A message has three frames: topic, sequence number (8 bytes, big-endian), and in msgpack
[time, [events], data-parallel rank]. An event is a map with its kind under "type" (vLLM 0.32,
SGLang 0.5) or, in older versions, a list that begins with it. Block hashes are whole numbers,
unsigned in vLLM and signed in SGLang, or bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from routing_agent.core.kv_view import Cleared, Event, Removed, Stored

# Where the fields stand in events that are lists.
_LISTED: Final[Mapping[str, Sequence[str]]] = {
    "BlockStored": (
        "type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id",
        "medium", "lora_name",
    ),
    "BlockRemoved": ("type", "block_hashes", "medium"),
    "AllBlocksCleared": ("type",),
}  # fmt: skip
_NUMBER_BYTES: Final = 8
_MASK: Final = (1 << 64) - 1
_decoder: Final = msgspec.msgpack.Decoder()


class NotEvents(Exception):
    """A message that is none of these; says what is wrong with it."""


def sequence_of(frame: bytes) -> int:
    """Read a message's number."""
    if len(frame) != _NUMBER_BYTES:
        raise NotEvents(f"its number has {len(frame)} bytes, not {_NUMBER_BYTES}")
    return int.from_bytes(frame, "big")


class Batch(msgspec.Struct):
    """The events of one message, and when they happened by the engine's clock (Unix seconds)."""

    at: float
    events: list[Event]


def read_batch(payload: bytes) -> Batch:
    """Read one message; events of unknown kinds are left out. Raises `NotEvents`."""
    try:
        batch = _decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise NotEvents(f"not msgpack: {error}") from None
    if not isinstance(batch, list) or len(batch) < 2 or not isinstance(batch[1], list):
        raise NotEvents("not a list of time and events")
    if not isinstance(batch[0], int | float):
        raise NotEvents("its time is no number")
    events = [_event(found) for found in batch[1]]
    return Batch(float(batch[0]), [event for event in events if event is not None])


def _event(found: Any) -> Event | None:
    if isinstance(found, list) and found:
        names = _LISTED.get(str(found[0]), ())
        found = dict(zip(names, found, strict=False))
    if not isinstance(found, dict):
        raise NotEvents("an event is neither a map nor a list")
    # Other memories than the GPU's, and further groups of layers, repeat what the first says.
    if found.get("medium") not in (None, "GPU") or found.get("group_idx"):
        return None
    try:
        return _known(found)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise NotEvents(f"an event lacks or garbles {error}") from None


def _known(found: dict[str, Any]) -> Event | None:
    kind = found.get("type")
    if kind == "AllBlocksCleared":
        return Cleared()
    if kind == "BlockRemoved":
        return Removed([_number(block) for block in found["block_hashes"]])
    if kind != "BlockStored":
        return None
    hashes = [_number(block) for block in found["block_hashes"]]
    tokens = array("I", found["token_ids"])
    parent, size = found["parent_block_hash"], found["block_size"]
    if not isinstance(size, int) or size <= 0 or len(tokens) < size * len(hashes):
        raise ValueError("token_ids")
    return Stored(
        hashes=hashes,
        parent=None if parent is None else _number(parent),
        tokens=tokens,
        block_tokens=size,
        extras=_extras(found, len(hashes)),
    )


def _extras(found: dict[str, Any], count: int) -> list[bytes]:
    """Give what a block's content depends on beside its tokens: adapter, salt, images."""
    keys = found.get("extra_keys")
    if isinstance(keys, list) and len(keys) == count:
        return [b"" if key is None else msgspec.msgpack.encode(key) for key in keys]
    adapter = found.get("lora_name") or found.get("lora_id")
    return [b"" if adapter is None else msgspec.msgpack.encode(adapter)] * count


def _number(block: Any) -> int:
    if isinstance(block, int):
        return block & _MASK
    if isinstance(block, bytes):
        return int.from_bytes(block[-_NUMBER_BYTES:], "big")
    raise TypeError("block_hashes")
