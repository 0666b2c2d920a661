"""What deserves attention, and how a pool is doing: each verdict with its reason."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from controlplane.domain.attention import (
    PoolCounts,
    Problem,
    Severity,
    Trouble,
    in_order,
    pool_health,
    pool_problem,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("counts", "code", "reason"),
    [
        (PoolCounts(), "empty", "It has no replicas: requests to it get 503."),
        (PoolCounts(wanted=2, ready=2), "healthy", ""),
        (PoolCounts(ready=3, draining=1), "healthy", ""),
        (PoolCounts(starting=2), "loading", "No replica is ready: 2 starting."),
        (PoolCounts(starting=1, failed=1), "down", "No replica is ready: 1 failed, 1 starting."),
        (PoolCounts(draining=1), "down", "No replica is ready: 1 draining."),
        (PoolCounts(ready=3, ejected=1), "degraded", "3 of 4 replicas ready: 1 ejected."),
        (PoolCounts(wanted=4, ready=3), "degraded", "3 of 4 replicas ready."),
        (
            PoolCounts(wanted=4, ready=3, starting=1),
            "loading",
            "3 of 4 replicas ready: 1 starting.",
        ),
        (
            PoolCounts(wanted=4, ready=3, draining=1),
            "degraded",
            "3 of 4 replicas ready: 1 draining.",
        ),
    ],
)
def test_a_pool_is_judged_by_its_replicas(counts, code, reason):
    found = pool_health(counts)
    assert (found.code, found.reason) == (code, reason)


SLOW = Trouble(text="KV cache over 85 %.")
FAILS = Trouble(text="Errors over 1 %.", is_critical=True)


@pytest.mark.parametrize(
    ("counts", "troubles", "code", "reason"),
    [
        (PoolCounts(ready=1), [SLOW], "degraded", "KV cache over 85 %."),
        (PoolCounts(ready=1), [SLOW, FAILS], "failing", "Errors over 1 %. KV cache over 85 %."),
        (
            PoolCounts(ready=1, failed=1),
            [FAILS],
            "failing",
            "1 of 2 replicas ready: 1 failed. Errors over 1 %.",
        ),
        (
            PoolCounts(starting=1),
            [Trouble(is_critical=True)],
            "down",
            "No replica is ready: 1 starting.",
        ),
        (
            PoolCounts(failed=1),
            [SLOW],
            "down",
            "No replica is ready: 1 failed. KV cache over 85 %.",
        ),
    ],
)
def test_what_else_is_wrong_with_a_pool_makes_it_worse_never_better(counts, troubles, code, reason):
    found = pool_health(counts, troubles)
    assert (found.code, found.reason) == (code, reason)
    assert set(found.troubles) == set(troubles)
    assert found.rank <= pool_health(counts).rank  # 0 is the worst


def test_a_pool_that_is_down_is_worse_than_one_that_is_degraded():
    down = pool_problem("a", PoolCounts(failed=1), T0)
    degraded = pool_problem("b", PoolCounts(ready=1, failed=1), T0)
    assert (down.severity, degraded.severity) == (Severity.FAILED, Severity.WARNING)
    assert down.target == ("pool", "a")


@pytest.mark.parametrize("counts", [PoolCounts(), PoolCounts(ready=1), PoolCounts(starting=1)])
def test_a_pool_with_nothing_to_do_about_is_no_problem(counts):
    assert pool_problem("a", counts, None) is None


def test_the_worst_come_first_then_the_oldest_then_those_of_unknown_age():
    def problem(what: str, severity: Severity, since: datetime | None) -> Problem:
        return Problem(severity=severity, what=what, since=since)

    found = in_order(
        [
            problem("d", Severity.WARNING, T0),
            problem("c", Severity.FAILED, None),
            problem("b", Severity.FAILED, T1),
            problem("a", Severity.FAILED, T0),
        ]
    )
    assert [p.what for p in found] == ["a", "b", "c", "d"]
