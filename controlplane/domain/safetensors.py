"""The header of a safetensors file, read by hand: an 8-byte length, then JSON, then the data.

The format is that of its documentation: the length is little-endian, the JSON maps each tensor's
name to dtype, shape and the two ends of its bytes; tensors lie one after the other without a gap.
Lengths are compared with the file's before anything is read or allocated by them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from controlplane.domain.errors import Invalid

FILE: Final = "adapter_model.safetensors"
LENGTH_BYTES: Final = 8
# A header has near 150 bytes a tensor. A rank-16 adapter of a mixture of 128 experts in 48 layers
# has 37,000 tensors, which is 6 MB; the format itself allows 100 MB.
HEADER_LIMIT_BYTES: Final = 8 * 1024 * 1024
TENSORS_LIMIT: Final = 50_000
_DTYPE_BYTES: Final[Mapping[str, int]] = {"F32": 4, "F16": 2, "BF16": 2}
_ZIP_OR_PICKLE: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

_Whole = Annotated[int, Meta(ge=0, le=2**62)]


class Tensor(msgspec.Struct, frozen=True):
    """One tensor as the header tells it."""

    dtype: str
    shape: Annotated[tuple[_Whole, ...], Meta(max_length=8)]
    data_offsets: tuple[_Whole, _Whole]


def header_bytes(head: bytes, file_bytes: int) -> int:
    """Give the length of the header by the first bytes of a file.

    Raises:
        Invalid: when the file is too short, or the length is none it can have.
    """
    if file_bytes < LENGTH_BYTES or len(head) < LENGTH_BYTES:
        raise _fault(f"has {file_bytes} bytes and is no safetensors file")
    length = int.from_bytes(head[:LENGTH_BYTES], "little")
    if length > file_bytes - LENGTH_BYTES and head.startswith(_ZIP_OR_PICKLE):
        raise _fault(
            "is a pickle by its first bytes, which runs code when it is loaded: nothing of it was "
            "read. Save the weights with safe_serialization=True"
        )
    if length > file_bytes - LENGTH_BYTES:
        raise _fault(f"says that its header has {length} bytes, and the file has {file_bytes}")
    if length > HEADER_LIMIT_BYTES:
        raise _fault(f"has a header of {length} bytes; {HEADER_LIMIT_BYTES} are allowed")
    return length


def tensors(head: bytes, file_bytes: int) -> dict[str, Tensor]:
    """Give the tensors of a file by name, each where it says it is.

    Args:
        head: the file's first bytes: length and header at least.

    Raises:
        Invalid: when the header is wrong or does not fit the file.
    """
    length = header_bytes(head, file_bytes)
    found = _decoded(head[LENGTH_BYTES : LENGTH_BYTES + length])
    if not found:
        raise _fault("has no tensors")
    _check_bytes(found, file_bytes - LENGTH_BYTES - length)
    return found


def _decoded(header: bytes) -> dict[str, Tensor]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        if len(raw) > TENSORS_LIMIT:
            raise _fault(f"has {len(raw)} tensors; {TENSORS_LIMIT} are allowed")
        return {name: msgspec.json.decode(told, type=Tensor) for name, told in raw.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _fault(f"has a header that is not as it must be: {error}") from error


def _check_bytes(found: Mapping[str, Tensor], data_bytes: int) -> None:
    """Check that the tensors fill the data exactly, each with as many bytes as its shape takes."""
    end = 0
    for name, tensor in sorted(found.items(), key=lambda item: item[1].data_offsets):
        each = _DTYPE_BYTES.get(tensor.dtype)
        if each is None:
            known = ", ".join(_DTYPE_BYTES)
            raise _fault(f"has {name[:200]!r} as {tensor.dtype[:20]!r}; engines take {known}")
        begin, after = tensor.data_offsets
        if begin != end or after - begin != math.prod(tensor.shape) * each:
            raise _fault(f"has {name[:200]!r} at bytes {begin} to {after}, which is not its place")
        end = after
    if end != data_bytes:
        raise _fault(f"has {data_bytes} bytes of data, and its tensors take {end}")


def _fault(said: str) -> Invalid:
    return Invalid(f"{FILE} {said}.", field=FILE)
