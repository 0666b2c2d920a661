"""What is done about one adapter on one replica: each case, and how long failures wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from routing_agent.core.figures import EngineFigures
from routing_agent.core.replica import Replica
from routing_agent.core.upkeep import (
    LONGEST_PAUSE_S,
    LONGEST_REJECTED_PAUSE_S,
    Attempts,
    is_in_use,
    next_step,
    pause_after,
)
from tests.agent.core.build import NOW, endpoint, fleet, pool, settings


def replica(*wanted: str, listed: tuple[str, ...] = (), **changes: object) -> Replica:
    one = endpoint("r", adapters=wanted, **changes)
    made = fleet(pool(endpoints=(one,), settings=settings(drain_limit_s=60))).replicas["r"]
    made.note_health(True, "answers", NOW)
    made.adapters.note_listed(listed, NOW)
    return made


def step(made: Replica, attempts: Attempts | None = None, now: float = NOW) -> tuple[str, str]:
    verdict = next_step(made, "a", attempts or Attempts(), now)
    return verdict.step, verdict.reason


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert step(replica("a", listed=("a",))) == ("keep", "")
    assert step(replica()) == ("forget", "")


def test_what_is_missing_is_loaded_where_the_engine_takes_requests() -> None:
    assert step(replica("a")) == ("load", "")
    assert step(replica("a", state="warming")) == ("load", "")
    assert step(replica("a", state="draining")) == ("wait", "it is draining")
    made = replica("a")
    made.note_health(False, "dead", NOW)
    assert step(made) == ("wait", "it is unhealthy: dead")


def test_after_a_failure_it_waits() -> None:
    made, attempts = replica("a"), Attempts()
    pause_s = attempts.note_failure(NOW, rejected=False, chance=0.5)
    assert step(made, attempts, NOW + pause_s / 2) == ("wait", "tried lately")
    assert step(made, attempts, NOW + pause_s) == ("load", "")
    attempts.note_success()
    assert step(made, attempts) == ("load", "")


def test_what_is_not_wanted_any_more_goes_when_its_requests_have_ended() -> None:
    """R41."""
    made, attempts = replica(listed=("a",)), Attempts(unwanted_since=NOW)
    assert step(made, attempts) == ("unload", "")
    made.adapters.begin("a")
    assert step(made, attempts) == ("wait", "requests with it still run")
    assert step(made, attempts, NOW + 60) == ("unload", "")
    assert step(made, None) == ("wait", "requests with it still run")
    made.adapters.end("a")
    assert step(made, attempts) == ("unload", "")


def test_requests_of_other_agents_are_seen_in_the_engines_metrics() -> None:
    """The gauge of running adapters keeps its last value when nothing runs."""
    made = replica(listed=("a",))
    for running, waiting, names, expected in (
        (1, 0, ("a",), True), (0, 1, ("a",), True), (0, 0, ("a",), False), (1, 0, ("b",), False),
        (1, 0, None, False), (None, None, ("a",), False),
    ):  # fmt: skip
        figures = EngineFigures(running=running, waiting=waiting, running_adapters=names)
        made.note_scrape(figures, NOW)
        assert is_in_use(made, "a") is expected
    made.note_scrape(EngineFigures(running=1, running_adapters=("a",)), NOW)
    made.note_scrape_error("gone")
    assert not is_in_use(made, "a")


@given(st.integers(1, 10_000), st.booleans(), st.floats(0, 1))
def test_pauses_grow_and_are_bounded(failures: int, rejected: bool, chance: float) -> None:
    """R42: no tight loop, and never for ever."""
    longest = LONGEST_REJECTED_PAUSE_S if rejected else LONGEST_PAUSE_S
    pause_s = pause_after(failures, rejected=rejected)
    assert 1 <= pause_s <= longest
    assert pause_s <= pause_after(failures + 1, rejected=rejected)
    attempts = Attempts(failures=failures - 1)
    assert 0.8 * pause_s <= attempts.note_failure(0, rejected=rejected, chance=chance)
    assert attempts.again_at <= 1.2 * pause_s
