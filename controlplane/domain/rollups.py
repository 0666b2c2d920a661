"""What a stretch of time looked like, in figures that can be added up. Pure.

Everything is a sum, a maximum or an integral over time, so that minutes add up to hours, pools to
the fleet, and agents to a pool, without losing what a percentile or a mean needs. Means are read
from integrals: requests running are `running_s / load_s`, KV usage is `kv_s / kv_replica_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec

Counts = dict[str, int]
Buckets = dict[int, int]
_Key = TypeVar("_Key", str, int)


class Figures(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One subject over one stretch of time. Stored as an array: only ever append fields."""

    covered_s: int = 0  # of these seconds somebody reported; the rest is a gap
    requests: int = 0
    failed: int = 0  # answers 5xx; of a replica: failures that count against it
    statuses: Counts = {}
    ttft: Buckets = {}
    tpot: Buckets = {}
    e2e: Buckets = {}
    queue_wait: Buckets = {}
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    retries: int = 0
    shed: int = 0
    peak_rate: float = 0.0  # requests a second in the busiest five seconds
    preemptions: int | None = None  # None: no engine counts them
    load_s: int = 0  # of these seconds some engine's load is known
    running_s: int = 0  # request-seconds
    waiting_s: int = 0
    kv_replica_s: int = 0  # replica-seconds whose KV usage is known
    kv_s: float = 0.0  # usage times seconds
    kv_max: float | None = None
    gpu_s: int = 0  # GPU-seconds whose utilisation is known
    utilization_s: float = 0.0
    utilization_max: float | None = None
    memory_gpu_s: int = 0  # GPU-seconds whose used memory is known
    memory_byte_s: int = 0
    temperature_max: float | None = None


_TABLES: Final = ("statuses", "ttft", "tpot", "e2e", "queue_wait")
_MAXIMA: Final = ("kv_max", "utilization_max", "temperature_max")
_SUMS: Final = (
    "requests",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "retries",
    "shed",
    "running_s",
    "waiting_s",
    "kv_replica_s",
    "kv_s",
    "gpu_s",
    "utilization_s",
    "memory_gpu_s",
    "memory_byte_s",
)
_COUNTERS: Final = _SUMS[:7]  # these only grow while a stretch is being reported


def over_time(parts: Iterable[Figures]) -> Figures:
    """Add figures of one subject up, of one stretch after the other."""
    return _combined(list(parts), is_same_time=False)


def over_subjects(parts: Iterable[Figures]) -> Figures:
    """Add figures of several subjects up, all of the same time.

    The peak rate of the sum is not known from peaks at different moments: the highest is kept.
    """
    return _combined(list(parts), is_same_time=True)


def settled(old: Figures, new: Figures) -> Figures:
    """Give what is known of one stretch that was summed up twice.

    What is counted only grows until all have reported, so of each count the larger one is right; a
    source that was emptied meanwhile and knows less takes nothing back. Doing it again changes
    nothing. Readings of the moment come from whichever saw more of the stretch.
    """
    wider = new if new.covered_s >= old.covered_s else old
    known = [n for n in (old.preemptions, new.preemptions) if n is not None]
    counted = {name: max(getattr(old, name), getattr(new, name)) for name in _COUNTERS}
    tables = {name: _largest(getattr(old, name), getattr(new, name)) for name in _TABLES}
    peak = max(old.peak_rate, new.peak_rate)
    return msgspec.structs.replace(
        wider, **counted, **tables, peak_rate=peak, preemptions=max(known, default=None)
    )


def _combined(parts: list[Figures], *, is_same_time: bool) -> Figures:
    if len(parts) < 2:
        return parts[0] if parts else Figures()
    lasted: Callable[[list[int]], int] = max if is_same_time else sum
    preemptions = [p.preemptions for p in parts if p.preemptions is not None]
    values: dict[str, Any] = {name: sum([getattr(p, name) for p in parts]) for name in _SUMS}
    values |= {name: _largest_of(parts, name) for name in _MAXIMA}
    values |= {name: _added([getattr(p, name) for p in parts]) for name in _TABLES}
    return Figures(
        covered_s=lasted([p.covered_s for p in parts]),
        load_s=lasted([p.load_s for p in parts]),
        peak_rate=max((p.peak_rate for p in parts), default=0.0),
        preemptions=sum(preemptions) if preemptions else None,
        **values,
    )


def _largest_of(parts: list[Figures], name: str) -> float | None:
    return max((v for p in parts if (v := getattr(p, name)) is not None), default=None)


def _added(tables: list[dict[_Key, int]]) -> dict[_Key, int]:
    total: dict[_Key, int] = {}
    for table in tables:
        for key, n in table.items():
            total[key] = total.get(key, 0) + n
    return total


def _largest(old: Mapping[_Key, int], new: Mapping[_Key, int]) -> dict[_Key, int]:
    return {key: max(old.get(key, 0), new.get(key, 0)) for key in old.keys() | new.keys()}


# -- reading ---------------------------------------------------------------------------------------


def rate(count: float, figures: Figures) -> float | None:
    """Give a count as so many a second, of the seconds that were reported."""
    return count / figures.covered_s if figures.covered_s else None


def hit_rate(figures: Figures) -> float | None:
    """Give the share of prompt tokens that came from the prefix cache."""
    return figures.cached_tokens / figures.prompt_tokens if figures.prompt_tokens else None


def kv_mean(figures: Figures) -> float | None:
    """Give the mean KV cache usage over replicas and time."""
    return figures.kv_s / figures.kv_replica_s if figures.kv_replica_s else None


def running(figures: Figures) -> float | None:
    """Give how many requests ran in engines, in the mean; None where no engine tells."""
    return figures.running_s / figures.load_s if figures.load_s else None


def waiting(figures: Figures) -> float | None:
    """Give how many requests waited in engines, in the mean; None where no engine tells."""
    return figures.waiting_s / figures.load_s if figures.load_s else None


def utilization_mean(figures: Figures) -> float | None:
    """Give the mean utilisation over GPUs and time."""
    return figures.utilization_s / figures.gpu_s if figures.gpu_s else None


def memory_mean(figures: Figures) -> float | None:
    """Give the bytes in use on a GPU, in the mean over GPUs and time."""
    return figures.memory_byte_s / figures.memory_gpu_s if figures.memory_gpu_s else None


_ENCODER: Final = msgspec.msgpack.Encoder()
_FIGURES: Final = msgspec.msgpack.Decoder(Figures)
_MEMBERS: Final = msgspec.msgpack.Decoder(dict[str, Figures])
_UNREAD: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def packed(figures: Figures | Mapping[str, Figures]) -> bytes:
    """Give figures, or those of several members by name, as bytes to keep."""
    return _ENCODER.encode(figures)


def unpacked(body: bytes) -> Figures:
    """Give kept figures back."""
    return _FIGURES.decode(body)


def unpacked_members(body: bytes) -> dict[str, Figures]:
    """Give kept figures of members back, by name."""
    return _MEMBERS.decode(body)


def picked_members(body: bytes, names: Iterable[str]) -> dict[str, Figures]:
    """Give kept figures of those members that are named; the others are passed over unread."""
    kept = _UNREAD.decode(body)
    return {name: _FIGURES.decode(kept[name]) for name in names if name in kept}
