"""A small cache in which each value is computed once, however many browsers ask at once."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any


class FlightCache:
    """Keeps at most `max_entries` values for `ttl_s`; callers of one key share one load."""

    def __init__(
        self, *, max_entries: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ):
        self._entries: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()
        self._flights: dict[Hashable, threading.Lock] = {}
        self._guard = threading.Lock()
        self._max_entries = max_entries
        self._ttl_s = ttl_s
        self._clock = clock

    def get(self, key: Hashable, load: Callable[[], Any]) -> Any:
        """Give the cached value of `key`, else load it; others who want it wait meanwhile."""
        with self._guard:
            fresh, value = self._look_up(key)
            if fresh:
                return value
            flight = self._flights.setdefault(key, threading.Lock())
        with flight:
            with self._guard:
                fresh, value = self._look_up(key)
            if not fresh:
                value = load()
                self._store(key, value)
        return value

    def clear(self) -> None:
        """Forget everything."""
        with self._guard:
            self._entries.clear()

    def _look_up(self, key: Hashable) -> tuple[bool, Any]:
        at, value = self._entries.get(key, (float("-inf"), None))
        return self._clock() - at < self._ttl_s, value

    def _store(self, key: Hashable, value: Any) -> None:
        with self._guard:
            self._flights.pop(key, None)
            self._entries[key] = (self._clock(), value)
            self._entries.move_to_end(key)
            while len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)
