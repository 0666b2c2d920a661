"""When an engine counts as hung, and what becomes of the requests it holds."""

from __future__ import annotations

from typing import Any

from routing_agent.core.replica import HUNG
from routing_agent.core.retries import BUDGET_START, HungVerdict, RetryBudget, judge_hung
from tests.agent.core.build import NOW, replica, settings


def judged(waited_s: float, **changes: Any) -> HungVerdict:
    given = {
        "tells_progress": True,
        "others": 1,
        "settings": settings(ttft_limit_s=30),
        "budget": RetryBudget(0.1, NOW),
        "now": NOW,
    }
    return judge_hung(waited_s, **(given | changes))


def test_it_goes_elsewhere_at_once_if_the_engine_usually_tells_its_progress() -> None:
    budget = RetryBudget(0.1, NOW)
    assert judged(0.1, budget=budget).failure == "hung"
    assert budget.balance == BUDGET_START  # judged, not spent


def test_an_engine_that_never_tells_gets_a_ttft_limit() -> None:
    assert judged(29.0, tells_progress=False).failure is None
    assert judged(30.0, tells_progress=False).failure == "hung"


def test_without_another_replica_or_a_retry_it_waits_a_ttft_limit_and_ends() -> None:
    spent = RetryBudget(0.0, NOW)
    spent.balance = 0.0
    for why in ({"others": 0}, {"budget": spent}):
        assert judged(29.0, **why).failure is None
        assert judged(30.0, **why).failure == "too_slow"


def test_missed_probes_make_it_hung_until_a_token_is_seen() -> None:
    one = replica()
    assert not one.is_hung(NOW)
    one.note_health(False, f"{HUNG}: no answer", NOW)
    assert one.is_hung(NOW)
    one.last_token_at = NOW + 1
    assert not one.is_hung(NOW + 1)
    one.note_health(False, "dead: connection refused", NOW)
    assert not one.is_hung(NOW + 100)


def test_steps_that_do_not_come_make_it_hung_whatever_its_pages_say() -> None:
    one = replica()
    one.note_health(True, "answers", NOW)
    one.note_doubt("steps", f"{HUNG}: 3 requests run in it")
    assert one.is_hung(NOW)
    one.note_doubt("steps", "")
    assert not one.is_hung(NOW)
