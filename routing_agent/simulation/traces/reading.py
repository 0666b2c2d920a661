"""Reads a trace, whichever of the known formats it has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from routing_agent.simulation.traces import agent_session, azure, mooncake, servegen
from routing_agent.simulation.traces.model import Trace, TraceError

Format = Literal["mooncake", "azure", "agent-session", "servegen"]
FORMATS: tuple[Format, ...] = get_args(Format)


def read_trace(
    path: Path, *, format: Format | None = None, seed: int = 0, limit: int | None = None
) -> Trace:
    """Read a trace, of the format it looks like unless one is given; at most `limit` requests.

    Raises `TraceError` that names the place and what is wrong.
    """
    try:
        trace = _read(path, format or _format_of(path), seed, limit)
    except OSError as problem:
        raise TraceError(f"{path}: {problem.strerror}") from problem
    if not trace.requests:
        raise TraceError(f"{path}: there is no request in it")
    if limit is not None and len(trace.requests) > limit:
        note = f"The first {limit:,} of {len(trace.requests):,} requests. {trace.note}".strip()
        return replace(trace, requests=trace.requests[:limit], note=note)
    return trace


def _read(path: Path, format: Format, seed: int, limit: int | None) -> Trace:
    if format == "mooncake":
        return mooncake.read(path)
    if format == "azure":
        return azure.read(path)
    if format == "agent-session":
        return agent_session.read(path, seed=seed)
    return servegen.read(path, seed=seed, limit=limit)


def _format_of(path: Path) -> Format:
    if not path.exists():
        raise TraceError(f"{path}: there is no such file or folder")
    for format in _likely(path):
        return format
    raise TraceError(
        f"{path}: not known what this is. Mooncake is a .jsonl file, Azure a .csv file, "
        f"agent sessions are {agent_session.FILES} in a folder or one of them, ServeGen is a "
        f"folder with {servegen.FILES}. --format says which."
    )


def _likely(path: Path) -> Iterator[Format]:
    if path.is_dir():
        if any(path.glob(servegen.FILES)):
            yield "servegen"
        if any(path.glob(agent_session.FILES)):
            yield "agent-session"
        return
    endings: dict[str, Format] = {".jsonl": "mooncake", ".csv": "azure", ".json": "agent-session"}
    if path.suffix in endings:
        yield endings[path.suffix]
