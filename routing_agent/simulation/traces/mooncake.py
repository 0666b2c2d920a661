"""Mooncake traces: JSON lines with block ids, 512 tokens a block.

Format: `timestamp` ms, `input_length`, `output_length` tokens, `hash_ids` (chained: an equal id is
an equal whole prefix), as published in kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from routing_agent.simulation.traces.model import (
    Trace,
    TraceError,
    TraceRequest,
    in_order,
    session_of,
)

BLOCK_TOKENS: Final = 512

# A trace knows no sessions. The agent would take the system text and the first user turn for one;
# the first two blocks are the nearest thing to that here.
SESSION_BLOCKS: Final = 2


class _Row(msgspec.Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=1)]
    output_length: Annotated[int, Meta(ge=0)]
    hash_ids: list[int]


def read(path: Path) -> Trace:
    """Read a Mooncake trace, or raise `TraceError` with the line that is wrong."""
    requests = in_order(_rows(path))
    return Trace(name=path.name, requests=requests, block_tokens=BLOCK_TOKENS)


def _rows(path: Path) -> Iterator[TraceRequest]:
    decoder = msgspec.json.Decoder(_Row)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _request(line, decoder, f"{path} line {number}")


def _request(line: bytes, decoder: msgspec.json.Decoder[_Row], place: str) -> TraceRequest:
    try:
        row = decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise TraceError(f"{place}: {problem}") from problem
    blocks = -(-row.input_length // BLOCK_TOKENS)
    if len(row.hash_ids) != blocks:
        raise TraceError(
            f"{place}: {len(row.hash_ids)} hash_ids for an input_length of {row.input_length}; "
            f"at {BLOCK_TOKENS} tokens a block there must be {blocks}"
        )
    return TraceRequest(
        at_s=row.timestamp / 1000,
        prompt_tokens=row.input_length,
        output_tokens=row.output_length,
        session=session_of("found", *row.hash_ids[:SESSION_BLOCKS]),
        blocks=tuple(row.hash_ids),
    )
