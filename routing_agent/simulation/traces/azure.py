"""Azure LLM inference traces: CSV with arrival and lengths, nothing on what prompts share.

Format: `TIMESTAMP,ContextTokens,GeneratedTokens`, as published in Azure/AzurePublicDataset (2023;
Patel et al., Splitwise, ISCA 2024).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from routing_agent.simulation.traces.model import (
    Trace,
    TraceError,
    TraceRequest,
    in_order,
    session_of,
)

COLUMNS: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
NOTE: Final = "This trace does not tell what prompts share: every prompt counts as new."


def read(path: Path) -> Trace:
    """Read an Azure trace, or raise `TraceError` with the line that is wrong."""
    arrivals = sorted(_rows(path), key=lambda row: row[0])
    begin_s = arrivals[0][0] if arrivals else 0.0
    requests = (
        TraceRequest(
            at_s=at_s - begin_s,
            prompt_tokens=prompt,
            output_tokens=output,
            session=session_of("found", number),
        )
        for number, (at_s, prompt, output) in enumerate(arrivals)
    )
    return Trace(name=path.name, requests=in_order(requests), note=NOTE)


def _rows(path: Path) -> Iterator[tuple[float, int, int]]:
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as lines:
        rows = csv.reader(lines)
        if next(rows, None) != COLUMNS:
            raise TraceError(f"{path} line 1: the columns must be {','.join(COLUMNS)}")
        for row in rows:
            if row:
                yield _row(row, f"{path} line {rows.line_num}")


def _row(row: Sequence[str], place: str) -> tuple[float, int, int]:
    if len(row) != len(COLUMNS):
        raise TraceError(f"{place}: {len(row)} columns, {len(COLUMNS)} expected")
    prompt = _count(row[1], COLUMNS[1], 1, place)
    return _seconds(row[0], place), prompt, _count(row[2], COLUMNS[2], 0, place)


def _count(text: str, column: str, least: int, place: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise TraceError(f"{place}: {column} is {text!r}; a whole number from {least} is expected")
    return int(text)


def _seconds(text: str, place: str) -> float:
    whole, _, fraction = text.partition(".")  # 100 ns digits: one more than datetime reads
    try:
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp() + float(f"0.{fraction or 0}")
    except ValueError as problem:
        raise TraceError(
            f"{place}: TIMESTAMP is {text!r}; it is written like 2023-11-16 18:15:46.6805900"
        ) from problem
