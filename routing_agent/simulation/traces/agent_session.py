"""Sessions of coding agents: one JSON file a session, block ids of 64 tokens.

Format: that of callanjfox/kv-cache-tester, traces/. `requests` have `t` (s since the session
began), `in` and `out` tokens, and `hash_ids`, one for each full block of `block_size` tokens. With
the scope "local" ids mean something in their own file only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from routing_agent.simulation.traces.model import (
    Trace,
    TraceError,
    TraceRequest,
    in_order,
    session_of,
)

FILES: Final = "trace_*.json"

# When sessions begin is not recorded: one a minute on average, by chance (a Poisson process).
MEAN_GAP_S: Final = 60.0
_LOCAL_IDS: Final = 32  # bits for the ids of one file


class _Turn(msgspec.Struct, rename={"prompt": "in", "output": "out"}):
    t: Annotated[float, Meta(ge=0)]
    prompt: Annotated[int, Meta(ge=1)]
    output: Annotated[int, Meta(ge=0)]
    hash_ids: list[Annotated[int, Meta(ge=0, lt=1 << 32)]]


class _Session(msgspec.Struct):
    id: str
    block_size: Annotated[int, Meta(ge=1)]
    hash_id_scope: Literal["local", "global"]
    requests: list[_Turn]


def read(path: Path, *, seed: int) -> Trace:
    """Read one session or a folder of them, or raise `TraceError` that tells what is wrong."""
    files = sorted(path.glob(FILES)) if path.is_dir() else [path]
    sessions = [(file, _session(file)) for file in files]
    sizes = {session.block_size for _, session in sessions}
    if len(sizes) != 1:
        raise TraceError(f"{path}: sessions of one block size expected, found {sorted(sizes)}")
    chance = random.Random(seed)  # noqa: S311 - not a secret
    requests: list[TraceRequest] = []
    begins_s = 0.0
    for number, (file, session) in enumerate(sessions):
        requests += _requests(file, session, number, begins_s)
        begins_s += chance.expovariate(1 / MEAN_GAP_S)
    return Trace(
        name=path.name,
        requests=in_order(requests),
        block_tokens=sizes.pop(),
        note=f"{len(sessions)} sessions, beginning {MEAN_GAP_S:.0f} s apart on average by chance; "
        "turns come at their recorded times, whenever the one before ended.",
    )


def _session(file: Path) -> _Session:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Session)
    except (msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise TraceError(f"{file}: {problem}") from problem


def _requests(
    file: Path, session: _Session, number: int, begins_s: float
) -> Iterator[TraceRequest]:
    apart = (number + 1) << _LOCAL_IDS if session.hash_id_scope == "local" else 0
    for place, turn in enumerate(session.requests):
        blocks = turn.prompt // session.block_size
        if len(turn.hash_ids) != blocks:
            raise TraceError(
                f"{file} requests[{place}]: {len(turn.hash_ids)} hash_ids for {turn.prompt} tokens "
                f"in; at {session.block_size} tokens a block there must be {blocks}"
            )
        yield TraceRequest(
            at_s=begins_s + turn.t,
            prompt_tokens=turn.prompt,
            output_tokens=turn.output,
            session=session_of("named", session.id),
            blocks=tuple(apart + block for block in turn.hash_ids),
        )
