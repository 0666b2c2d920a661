"""ServeGen: what clients ask for over days, of which single requests are drawn.

Format: that of alibaba/ServeGen, data/ (Xiang et al., arXiv 2505.09999). A folder has
`chunk-N-trace.csv` for each client: window start s, requests/s, CV, pattern (Gamma, Weibull or
empty), shape, scale; and `chunk-N-dataset.json` for some: the probability of each input and output
length in windows of six hours. A client without lengths draws them like a client that has some.

Gaps between requests are drawn from the pattern with its shape, stretched to the window's rate.
"""

from __future__ import annotations

import ast
import csv
import heapq
import math
import random
import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Final

import msgspec

from routing_agent.simulation.traces.model import Trace, TraceError, TraceRequest, session_of

FILES: Final = "chunk-*-trace.csv"
DEFAULT_LIMIT: Final = 100_000  # the language trace draws a thousand requests a second for a week
_CLIENT: Final = re.compile(r"chunk-(\d+)-trace\.csv")
_WINDOW_S: Final = 600.0
_DATASET_WINDOW_S: Final = 21_600


@dataclass(frozen=True, slots=True)
class _Window:
    begins_s: float
    ends_s: float
    rate: float
    pattern: str
    shape: float


@dataclass(frozen=True, slots=True)
class _Lengths:
    """A distribution of token counts."""

    tokens: Sequence[int]
    bounds: Sequence[float]  # running sums of the probabilities

    def draw(self, chance: random.Random) -> int:
        point = chance.random() * self.bounds[-1]
        return self.tokens[min(bisect(self.bounds, point), len(self.tokens) - 1)]


Dataset = dict[int, tuple[_Lengths, _Lengths]]  # by window start: input and output


def read(path: Path, *, seed: int, limit: int | None) -> Trace:
    """Draw the first `limit` requests of a folder; raises `TraceError` that says what is wrong."""
    clients = {int(found[1]): file for file in path.glob(FILES) if (found := _client(file))}
    datasets = {client: _dataset(path, client) for client in sorted(clients)}
    if not any(datasets.values()):
        raise TraceError(f"{path}: no chunk-N-dataset.json tells how long requests are")
    arrivals = heapq.merge(
        *(_arrivals(client, _windows(file), seed) for client, file in sorted(clients.items()))
    )
    draw = random.Random(seed)  # noqa: S311 - not a secret
    count = DEFAULT_LIMIT if limit is None else limit
    requests = tuple(
        _request(number, at_s, client, datasets, draw)
        for number, (at_s, client) in enumerate(islice(arrivals, count))
    )
    return Trace(
        name=path.name,
        requests=requests,
        note=f"The first {len(requests):,} requests drawn of {len(clients)} clients with seed "
        f"{seed}. What prompts share is not known: every prompt counts as new.",
    )


def _client(file: Path) -> re.Match[str] | None:
    return _CLIENT.fullmatch(file.name)


def _windows(file: Path) -> list[_Window]:
    with file.open(newline="", encoding="utf-8", errors="replace") as lines:
        rows = csv.reader(lines)
        windows = [_window(row, f"{file} line {rows.line_num}") for row in rows if row]
    for number, (one, following) in enumerate(pairwise(windows), start=2):
        if following.begins_s < one.ends_s:
            raise TraceError(f"{file} line {number}: begins at {following.begins_s}, too early")
    return windows


def _window(row: Sequence[str], place: str) -> _Window:
    if len(row) != 6:
        raise TraceError(f"{place}: {len(row)} columns, 6 expected")
    try:
        begins_s, rate, _, shape, _ = (float(row[i]) for i in (0, 1, 2, 4, 5))
    except ValueError as problem:
        raise TraceError(f"{place}: {problem}") from problem
    if row[3] not in ("Gamma", "Weibull", ""):
        raise TraceError(f"{place}: the pattern is {row[3]!r}; Gamma, Weibull or nothing expected")
    if not 0 <= rate < math.inf or (rate and row[3] and not 0 < shape < math.inf):
        raise TraceError(f"{place}: rate {row[1]} and shape {row[4]} make no sense")
    return _Window(begins_s, begins_s + _WINDOW_S, rate, row[3], shape)


def _arrivals(client: int, windows: list[_Window], seed: int) -> Iterator[tuple[float, int]]:
    chance = random.Random(f"{seed}/{client}")  # noqa: S311 - not a secret
    for window in windows:
        if not window.rate:
            continue
        at_s = window.begins_s + chance.random() * _gap_s(window, chance)
        while at_s < window.ends_s:
            yield at_s, client
            at_s += _gap_s(window, chance)


def _gap_s(window: _Window, chance: random.Random) -> float:
    if window.pattern == "Gamma":
        return chance.gammavariate(window.shape, 1 / (window.rate * window.shape))
    if window.pattern == "Weibull":
        mean = math.gamma(1 + 1 / window.shape)
        return chance.weibullvariate(1 / (window.rate * mean), window.shape)
    return chance.expovariate(window.rate)


def _dataset(folder: Path, client: int) -> Dataset:
    file = folder / f"chunk-{client}-dataset.json"
    if not file.exists():
        return {}
    try:
        windows = msgspec.json.decode(file.read_bytes(), type=dict[int, dict[str, str]])
        return {
            begins_s: (_lengths(one["input_tokens"]), _lengths(one["output_tokens"]))
            for begins_s, one in windows.items()
            if one["input_tokens"] != "{}" and one["output_tokens"] != "{}"
        }
    except KeyError as problem:
        raise TraceError(f"{file}: a window has no {problem}") from problem
    except (msgspec.MsgspecError, ValueError, SyntaxError) as problem:
        raise TraceError(f"{file}: {problem}") from problem


def _lengths(text: str) -> _Lengths:
    """Read the text of a Python dict literal {tokens: probability}."""
    found = ast.literal_eval(text)
    if not isinstance(found, dict) or not all(isinstance(n, int) and n >= 0 for n in found):
        raise ValueError("lengths must be a dict of token counts")
    bounds = list(accumulate(float(share) for share in found.values()))
    if not bounds or bounds[-1] <= 0:
        raise ValueError("the probabilities of lengths must add up to more than 0")
    return _Lengths(list(found), bounds)


def _request(
    number: int, at_s: float, client: int, datasets: dict[int, Dataset], chance: random.Random
) -> TraceRequest:
    prompt, output = _draw_lengths(at_s, client, datasets, chance)
    return TraceRequest(
        at_s=at_s,
        prompt_tokens=max(1, prompt),
        output_tokens=output,
        session=session_of("found", number),
    )


def _draw_lengths(
    at_s: float, client: int, datasets: dict[int, Dataset], chance: random.Random
) -> tuple[int, int]:
    window = int(at_s // _DATASET_WINDOW_S) * _DATASET_WINDOW_S
    own = datasets[client]
    if not own:
        own = datasets[chance.choice([other for other, known in datasets.items() if known])]
    known = own.get(window) or own[min(own, key=lambda begins_s: abs(begins_s - window))]
    return known[0].draw(chance), known[1].draw(chance)
