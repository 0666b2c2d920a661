"""What a worker tells the others of a prompt that it placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec


class Placed(msgspec.Struct, array_like=True, gc=False):
    """One prompt: where it went, and what the replica must compute of it."""

    pool: int  # slots
    replica: int
    session: int  # a hash
    inserted_blocks: int  # new to the replica
    work_tokens: int  # that it computes
    block_tokens: float
    blocks: Sequence[int]  # hashes


ENCODER: Final = msgspec.msgpack.Encoder()
DECODER: Final = msgspec.msgpack.Decoder(Placed)  # here, since this module is not compiled
