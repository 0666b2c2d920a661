"""Consistent hash for session affinity, with bounded load.

A session goes to the first replica clockwise of its hash that may take it and is not over
`bound` times the mean load. Removing one of N replicas moves about 1/N of the sessions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import xxhash


class Ring:
    """Replica ids on a circle of 64-bit hashes, `virtual_nodes` points each."""

    __slots__ = ("_owners", "_points", "size")

    def __init__(self, ids: Iterable[str], *, virtual_nodes: int, seed: int) -> None:
        points = sorted(
            (xxhash.xxh3_64_intdigest(f"{replica}#{i}".encode(), seed), replica)
            for replica in set(ids)
            for i in range(virtual_nodes)
        )
        self._points = [point for point, _ in points]
        self._owners = [owner for _, owner in points]
        self.size = len(set(self._owners))

    def walk(self, key: int) -> Iterator[str]:
        """Give every replica once, clockwise from `key`."""
        owners = self._owners
        start = bisect_left(self._points, key)
        seen: set[str] = set()
        for i in range(start, start + len(owners)):
            owner = owners[i % len(owners)]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == self.size:
                    return


def load_ceiling(*, total_tokens: int, request_tokens: int, replicas: int, bound: float) -> float:
    """Give the load no replica may pass, this request included: `bound` times the new mean.

    Never below the request itself, so that an empty replica can always take one.
    """
    mean = (total_tokens + request_tokens) / replicas
    return max(bound * mean, request_tokens)
