"""Judges a canary against stable: Successful, Failed or Inconclusive, with the reason in words.

A P99 of 200 requests is its second slowest one: two equal versions differ by 10 % more often than
not. So a canary fails only for what is *proven*: its P99 is at least so much, stable's at most so
much, both beyond chance and beyond the width of a bucket, and still more than the limit apart.
What is merely likely is inconclusive and waits for more requests; the rest passes.

`PROVEN_Z`: a rollout is judged every ten seconds for most of an hour, some 720 looks at three
metrics. Two bounds at 3.09 standard deviations (1 in 1,000 each) are crossed together by chance
once in 200,000 looks. `LIKELY_Z`: one standard deviation, about 1 in 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controlplane.domain import amounts, order_bounds
from controlplane.domain.latency import percentile, sample_count
from controlplane.domain.rollups import Figures

PROVEN_Z: Final = 3.09
LIKELY_Z: Final = 1.0
P99: Final = 0.99
# The first requests of a new version are slow: caches are cold. A latency is judged from here on.
LATENCY_SAMPLES: Final = 50
# Below this share of failed requests nobody breaks a promise (the default SLO's errors).
ERROR_FLOOR: Final = 0.005


class Verdict(StrEnum):
    """What an analysis says."""

    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    INCONCLUSIVE = "Inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric of a canary against stable. Latencies in seconds, errors as a share."""

    name: str  # ttft_p99, tpot_p99, error_rate
    verdict: Verdict
    reason: str
    canary: float | None = None
    stable: float | None = None
    canary_at_least: float | None = None  # proven
    stable_at_most: float | None = None
    canary_samples: int = 0
    stable_samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One look at a canary: the verdict over all metrics, and what it was made of."""

    verdict: Verdict
    reason: str
    has_data: bool  # the canary was heard of, and so was stable
    has_enough: bool  # of the canary's requests
    metrics: tuple[Metric, ...] = ()
    canary_requests: int = 0
    stable_requests: int = 0


LABELS: Final[Mapping[str, str]] = {
    "ttft_p99": "TTFT P99",
    "tpot_p99": "TPOT P99",
    "error_rate": "error rate",
}


def analyse(canary: Figures, stable: Figures, *, limit: float, min_requests: int) -> Analysis:
    """Judge what the canary did against what stable did.

    Args:
        canary: since its step began.
        stable: the same for stable, or its figures of the last step in which it had traffic.
        limit: how much worse the canary may be, as a share of stable (0.1 = 10 %).
    """
    if not canary.requests:
        return without_data("no request of the canary has ended since this step began")
    metrics = (
        _latency("ttft_p99", canary.ttft, stable.ttft, limit),
        _latency("tpot_p99", canary.tpot, stable.tpot, limit),
        _errors(canary, stable, limit),
    )
    enough = canary.requests >= min_requests
    verdict, reason = _over_all(metrics, canary.requests, min_requests)
    return Analysis(
        verdict=verdict,
        reason=reason,
        has_data=True,
        has_enough=enough,
        metrics=metrics,
        canary_requests=canary.requests,
        stable_requests=stable.requests,
    )


def without_data(why: str) -> Analysis:
    """Give the analysis of nothing: never a pass, and the step's clock stands still."""
    reason = f"{why}: the clock stands still"
    return Analysis(verdict=Verdict.INCONCLUSIVE, reason=reason, has_data=False, has_enough=False)


def _over_all(metrics: tuple[Metric, ...], requests: int, least: int) -> tuple[Verdict, str]:
    for verdict in (Verdict.FAILED, Verdict.INCONCLUSIVE):
        told = [m.reason for m in metrics if m.verdict is verdict]
        if told:
            return verdict, "; ".join(told)
    if requests < least:
        return Verdict.INCONCLUSIVE, f"{requests} of at least {least} requests of the canary"
    return Verdict.SUCCESSFUL, "; ".join(m.reason for m in metrics)


def _latency(
    name: str, canary: Mapping[int, int], stable: Mapping[int, int], limit: float
) -> Metric:
    n, base = sample_count(canary), sample_count(stable)
    at_least = order_bounds.at_least_s(canary, P99, PROVEN_Z)
    at_most = order_bounds.at_most_s(stable, P99, PROVEN_Z)
    verdict, reason = _latency_verdict(name, canary, stable, limit)
    return Metric(
        name=name,
        verdict=verdict,
        reason=reason,
        canary=percentile(canary, P99),
        stable=percentile(stable, P99),
        canary_at_least=at_least,
        stable_at_most=at_most,
        canary_samples=n,
        stable_samples=base,
    )


def _latency_verdict(
    name: str, canary: Mapping[int, int], stable: Mapping[int, int], limit: float
) -> tuple[Verdict, str]:
    label, n, base = LABELS[name], sample_count(canary), sample_count(stable)
    if not n and not base:
        return Verdict.SUCCESSFUL, f"{label} is not measured: neither version streams"
    if min(n, base) < LATENCY_SAMPLES:
        return Verdict.INCONCLUSIVE, (
            f"{label}: {n} samples of the canary and {base} of stable, from {LATENCY_SAMPLES}"
            " on they are compared"
        )
    pair = f"{_ms(percentile(canary, P99))} against {_ms(percentile(stable, P99))}"
    for z, verdict, said in (
        (PROVEN_Z, Verdict.FAILED, "proven"),
        (LIKELY_Z, Verdict.INCONCLUSIVE, "likely, not proven"),
    ):
        low = order_bounds.at_least_s(canary, P99, z)
        high = order_bounds.at_most_s(stable, P99, z)
        if low is not None and high is not None and low > high * (1 + limit):
            return verdict, (
                f"{label} {pair}: more than {limit * 100:.3g} % worse is {said}"
                f" (at least {_ms(low)} against at most {_ms(high)})"
            )
    return Verdict.SUCCESSFUL, f"{label} {pair}: not worse by more than {limit * 100:.3g} %"


def _errors(canary: Figures, stable: Figures, limit: float) -> Metric:
    low, _ = order_bounds.share_bounds(canary.failed, canary.requests, PROVEN_Z)
    _, high = order_bounds.share_bounds(stable.failed, stable.requests, PROVEN_Z)
    verdict, reason = _error_verdict(canary, stable, limit)
    return Metric(
        name="error_rate",
        verdict=verdict,
        reason=reason,
        canary=canary.failed / canary.requests,
        stable=stable.failed / stable.requests if stable.requests else None,
        canary_at_least=low,
        stable_at_most=high,
        canary_samples=canary.requests,
        stable_samples=stable.requests,
    )


def _error_verdict(canary: Figures, stable: Figures, limit: float) -> tuple[Verdict, str]:
    pair = (
        f"{canary.failed} of {canary.requests} failed against {stable.failed} of {stable.requests}"
    )
    if not stable.requests:
        return Verdict.INCONCLUSIVE, f"error rate: {pair}; there is nothing to compare with"
    for z, verdict, said in (
        (PROVEN_Z, Verdict.FAILED, "proven"),
        (LIKELY_Z, Verdict.INCONCLUSIVE, "likely, not proven"),
    ):
        low, _ = order_bounds.share_bounds(canary.failed, canary.requests, z)
        _, high = order_bounds.share_bounds(stable.failed, stable.requests, z)
        if low > max(high * (1 + limit), ERROR_FLOOR):
            return verdict, f"error rate: {pair}: worse is {said} (at least {low * 100:.3g} %)"
    return Verdict.SUCCESSFUL, f"error rate: {pair}: not proven worse"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    return f"{amounts.three(seconds * 1000)} ms" if seconds < 1 else f"{amounts.three(seconds)} s"
