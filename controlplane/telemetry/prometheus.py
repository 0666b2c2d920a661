"""Prometheus, asked with a deadline and answered from a cache; it may be gone at any time.

What it answers besides rows counts too: warnings (a remote store that gave only a part) go with the
figures, an error's own words into the reason. Its clock may be minutes off: it is compared with
ours, and times are shifted, else the last minutes would look empty.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import requests
import structlog
from django.conf import settings
from prometheus_api_client import PrometheusApiClientException, PrometheusConnect
from urllib3.util.retry import Retry

from controlplane.console import quantities
from controlplane.domain import amounts
from controlplane.telemetry import queries
from controlplane.telemetry.cache import FlightCache
from controlplane.telemetry.snapshots import NoData, Window

log = structlog.get_logger()

DEADLINE_S = 2.0
CIRCUIT_S = 15.0  # one reader in fifteen seconds waits for a Prometheus that hangs
CLOCK_TTL_S = 30.0
SKEW_LIMIT_S = 10 * 365 * 86_400.0  # further off it is no clock, and no time to ask for either
SKEW_S = 5.0  # clocks that differ by less agree for charts in steps of 5 s and more
ANSWER_LIMIT_BYTES = 16 * 2**20  # a chart of 300 points over a thousand series has about 9 MB
BUSY = (500, 502, 503, 504, 429)  # the server is in trouble; other codes are about the query
Rows = dict[str, list[float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Rows by the value of a label, and what Prometheus warned of."""

    rows: Rows
    warnings: tuple[str, ...] = ()


# What reading an answer that is none of Prometheus's may raise.
_NO_KNOWN_FORM = (
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


class TooMuch(Exception):
    """Prometheus answered with more than any chart needs."""


class Refused(Exception):
    """Prometheus answered that it does not answer."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status


class Prometheus:
    """A query client that always answers within two seconds: with rows or with `NoData`."""

    def __init__(self, url: str, *, deadline_s: float = DEADLINE_S):
        self.url = url
        self._deadline_s = deadline_s
        session = requests.Session()
        session.hooks["response"] = [_check]
        # `requests` limits each read, not the whole answer: the future's deadline does, and comes
        # first, so that a late answer is told as one.
        self._client = PrometheusConnect(
            url=url.rstrip("/"), retry=Retry(0), timeout=2 * deadline_s, session=session
        )
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="prometheus")
        self._cache = FlightCache(max_entries=512, ttl_s=4.0)
        self._clocks = FlightCache(max_entries=1, ttl_s=CLOCK_TTL_S)
        self._shut_until = 0.0
        self._last_error = NoData("")
        self.answered_at: float | None = None

    def over(self, promql: str, label: str | None, window: Window) -> Answered | NoData:
        """Run a range query; rows are keyed by the value of `label`, or by '' without one."""
        key = (promql, window.end_s, window.step_s, window.steps)
        return self._cache.get(key, lambda: self._over(promql, label, window))

    def problem(self) -> str:
        """Say what is wrong with Prometheus, or nothing when it answers."""
        found = self._cache.get("clock", self._ask_clock)
        return found.reason if isinstance(found, NoData) else ""

    def skew_s(self) -> float:
        """Give how far its clock is ahead of ours, in seconds; 0 while nobody knows."""
        found = self._clocks.get("clock", self._ask_clock)
        return 0.0 if isinstance(found, NoData) or abs(found) < SKEW_S else found

    def skew_note(self) -> str:
        """Say that its clock is off, if it is."""
        skew_s = self.skew_s()
        if not skew_s:
            return ""
        apart = quantities.seconds(round(abs(skew_s)))
        side = "ahead of" if skew_s > 0 else "behind"
        return f"Prometheus's clock is {apart} {side} ours; its times are corrected."

    def _ask_clock(self) -> float | NoData:
        before = time.time()
        found = self._ask(lambda: self._client.custom_query(queries.CLOCK.promql))
        if isinstance(found, NoData):
            return found
        now = (before + time.time()) / 2
        try:
            ahead_s = float(found.rows[1]) - now
        except (TypeError, ValueError, IndexError, KeyError):
            ahead_s = math.nan
        if not abs(ahead_s) <= SKEW_LIMIT_S:  # nor is what is no number
            return self._failed("Prometheus answered in no known form when asked for the time.")
        return ahead_s

    def _over(self, promql: str, label: str | None, window: Window) -> Answered | NoData:
        shift_s = round(self.skew_s())
        found = self._ask(
            lambda: self._client.custom_query_range(
                promql,
                datetime.fromtimestamp(window.start_s + window.step_s + shift_s, UTC),
                datetime.fromtimestamp(window.end_s + shift_s, UTC),
                str(window.step_s),
                params={"timeout": f"{self._deadline_s}s"},
            )
        )
        if isinstance(found, NoData):
            return found
        try:
            rows = _aligned(found.rows, label, window, shift_s)
        except _NO_KNOWN_FORM as error:
            return self._failed("Prometheus answered in no known form.", error)
        if not rows:
            return NoData(" ".join([NO_SERIES, *found.warnings]))
        return Answered(rows=rows, warnings=found.warnings)

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Run one query under the deadline; give its raw result with its warnings."""
        if time.monotonic() < self._shut_until:
            return self._last_error
        future: Future[Any] = self._threads.submit(_with_warnings, call)
        try:
            answer = future.result(timeout=self._deadline_s)
        except (LateError, requests.Timeout):
            future.cancel()
            return self._failed(f"Prometheus did not answer within {self._deadline_s:g} s.")
        except Refused as error:
            reason = f"Prometheus refused the query: {error}"
            if error.status in BUSY:
                return self._failed(reason)
            log.warning("prometheus_query_refused", status=error.status, why=str(error))
            return NoData(reason)
        except TooMuch as error:
            return self._failed(str(error))
        except (PrometheusApiClientException, *_NO_KNOWN_FORM) as error:
            return self._failed("Prometheus answered in no known form.", error)
        except (requests.RequestException, OSError) as error:
            return self._failed(f"Prometheus is unreachable ({type(error).__name__}).", error)
        self.answered_at = time.time()
        return answer

    def _failed(self, reason: str, error: Exception | None = None) -> NoData:
        self._shut_until = time.monotonic() + CIRCUIT_S
        self._last_error = NoData(reason)
        log.warning("prometheus_query_failed", reason=reason, error=str(error or ""))
        return self._last_error


NO_SERIES = "Prometheus has no such series in this window."
_warned = threading.local()


def _check(response: requests.Response, *args: Any, **kwargs: Any) -> None:
    """Read what the client library leaves out: an error's own words, and warnings.

    Raises:
        Refused: when the answer says that the query failed.
        TooMuch: when it is longer than is read.
    """
    _read(response)
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    told = body if isinstance(body, dict) else {}
    _warned.texts = tuple(f"Prometheus warns: {text}" for text in told.get("warnings") or ())
    if told.get("status") == "error" or not response.ok:
        why = f"{told.get('errorType', response.status_code)}: {told.get('error', 'no reason')}"
        raise Refused(response.status_code, why[:300])


def _read(response: requests.Response) -> None:
    """Read an answer up to the limit; `requests` alone would take whatever comes into memory."""
    found = bytearray()
    for piece in response.iter_content(64 * 1024):
        found += piece
        if len(found) > ANSWER_LIMIT_BYTES:
            response.close()
            limit = amounts.size(ANSWER_LIMIT_BYTES)
            raise TooMuch(f"Prometheus answered with more than {limit}, the most that is read.")
    response._content = bytes(found)


def _with_warnings(call: Callable[[], Any]) -> Answered:
    _warned.texts = ()
    found = call()
    return Answered(rows=found, warnings=_warned.texts)


def _aligned(results: Any, label: str | None, window: Window, shift_s: int) -> Rows:
    times = {at: i for i, at in enumerate(window.times)}
    rows: Rows = {}
    for result in results:
        row = rows.setdefault(_name(result, label), [None] * window.steps)
        for at, value in result["values"]:
            position = times.get(round(float(at)) - shift_s)
            if position is not None:
                row[position] = number(value)
    return rows


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
