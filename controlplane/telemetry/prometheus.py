"""Prometheus, asked with a deadline and answered from a cache; it may be gone at any time."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from datetime import UTC, datetime
from typing import Any

import requests
import structlog
from django.conf import settings
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from urllib3.util.retry import Retry

from controlplane.telemetry import queries
from controlplane.telemetry.cache import FlightCache
from controlplane.telemetry.snapshots import NoData, Window

log = structlog.get_logger()

DEADLINE_S = 2.0
CIRCUIT_S = 15.0  # one reader in fifteen seconds waits for a Prometheus that hangs
Rows = dict[str, list[float | None]]


class Prometheus:
    """A query client that always answers within two seconds: with rows or with `NoData`."""

    def __init__(self, url: str, *, deadline_s: float = DEADLINE_S):
        self.url = url
        self._deadline_s = deadline_s
        self._client = PrometheusConnect(url=url.rstrip("/"), retry=Retry(0), timeout=deadline_s)
        # `requests` limits each read, not the whole answer: the future's deadline does.
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="prometheus")
        self._cache = FlightCache(max_entries=512, ttl_s=4.0)
        self._shut_until = 0.0
        self._last_error = NoData("")
        self.answered_at: float | None = None

    def over(self, promql: str, label: str | None, window: Window) -> Rows | NoData:
        """Run a range query; rows are keyed by the value of `label`, or by '' without one."""
        key = (promql, window.end_s, window.step_s, window.steps)
        return self._cache.get(key, lambda: self._over(promql, label, window))

    def now(self, promql: str, label: str | None = None) -> Rows | NoData:
        """Run an instant query; each row holds one value."""
        return self._cache.get((promql, "now"), lambda: self._now(promql, label))

    def problem(self) -> str:
        """Say what is wrong with Prometheus, or nothing when it answers."""
        found = self.now(queries.UP.promql)
        return found.reason if isinstance(found, NoData) else ""

    def _over(self, promql: str, label: str | None, window: Window) -> Rows | NoData:
        found = self._ask(
            lambda: self._client.custom_query_range(
                promql,
                datetime.fromtimestamp(window.start_s + window.step_s, UTC),
                datetime.fromtimestamp(window.end_s, UTC),
                str(window.step_s),
                params={"timeout": f"{self._deadline_s}s"},
            )
        )
        if isinstance(found, NoData):
            return found
        times = {at: i for i, at in enumerate(window.times)}
        rows: Rows = {}
        for result in found:
            row = rows.setdefault(_name(result, label), [None] * window.steps)
            for at, value in result.get("values", ()):
                if round(float(at)) in times:
                    row[times[round(float(at))]] = number(value)
        return rows or NoData("Prometheus has no such series in this window.")

    def _now(self, promql: str, label: str | None) -> Rows | NoData:
        found = self._ask(lambda: self._client.custom_query(promql))
        if isinstance(found, NoData):
            return found
        results = found if isinstance(found, list) and found and isinstance(found[0], dict) else []
        rows = {_name(r, label): [number(r["value"][1])] for r in results}
        return rows or NoData("Prometheus has no such series now.")

    def _ask(self, call: Any) -> Any:
        if time.monotonic() < self._shut_until:
            return self._last_error
        future: Future[Any] = self._threads.submit(call)
        try:
            answer = future.result(timeout=self._deadline_s)
        except LateError:
            future.cancel()
            return self._failed(f"Prometheus did not answer within {self._deadline_s:g} s.")
        except (requests.RequestException, OSError) as error:
            return self._failed(f"Prometheus is unreachable ({type(error).__name__}).", error)
        except (PrometheusApiClientException, ValueError, KeyError) as error:
            return self._failed("Prometheus refused the query or answered in no known form.", error)
        self.answered_at = time.time()
        return answer

    def _failed(self, reason: str, error: Exception | None = None) -> NoData:
        self._shut_until = time.monotonic() + CIRCUIT_S
        self._last_error = NoData(reason)
        log.warning("prometheus_query_failed", reason=reason, error=str(error or ""))
        return self._last_error


def _name(result: dict[str, Any], label: str | None) -> str:
    return str(result.get("metric", {}).get(label, "")) if label else ""


def number(text: Any) -> float | None:
    """Read a sample value; NaN and infinities are gaps."""
    value = float(text)
    return value if math.isfinite(value) else None


_client: Prometheus | None = None
_making = threading.Lock()


def prometheus() -> Prometheus | None:
    """Give this process's client, or None where no PROMETHEUS_URL is set."""
    global _client
    with _making:
        url = settings.PROMETHEUS_URL
        if url and (_client is None or _client.url != url):
            _client = Prometheus(url)
        return _client if url else None
