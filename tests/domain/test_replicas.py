"""What happens next to a replica: only evidence moves it, silence never does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.replica_states import MOVES, Event, State, next_state, states_accepting
from controlplane.domain.replicas import next_move
from tests.builders import sighting, view

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def event_of(replica, *sightings):
    move = next_move(replica, sightings, now=NOW)
    return move.event if move else None


def test_loading_becomes_warming_once_a_live_agent_finds_it_healthy():
    assert event_of(view(State.LOADING), sighting(health="unknown")) is None
    told = (sighting(health="unhealthy"), sighting("node-2", health="healthy"))
    assert event_of(view(State.LOADING), *told) is Event.ANSWERS


def test_warming_becomes_ready_once_it_is_warmed_and_healthy():
    assert event_of(view(State.WARMING), sighting(health="healthy")) is None
    assert event_of(view(State.WARMING), sighting(health="unhealthy", warmed=True)) is None
    assert event_of(view(State.WARMING), sighting(health="healthy", warmed=True)) is Event.WARMED


def test_ready_is_ejected_only_when_every_agent_that_sees_it_says_unhealthy():
    bad, good = sighting(health="unhealthy"), sighting("node-2", health="healthy")
    unsure = sighting("node-2", health="unknown")
    assert event_of(view(State.READY), bad, good) is None
    assert event_of(view(State.READY), bad, unsure) is None
    assert event_of(view(State.READY), bad, sighting("node-2", silent=True)) is Event.OUTLIER


def test_the_reason_of_an_ejection_is_the_agents_own():
    move = next_move(
        view(State.READY), [sighting(health="unhealthy", health_reason="3 probes failed")], now=NOW
    )
    assert move.reason == "unhealthy for every agent that sees it (node-1): 3 probes failed"


def test_the_reason_stands_without_words_of_the_agent_and_names_few_of_many():
    told = [sighting(f"node-{i}", health="unhealthy") for i in range(5)]
    reason = next_move(view(State.READY), told, now=NOW).reason
    assert reason == "unhealthy for every agent that sees it (node-0, node-1, node-2 and 2 more)"


def test_an_ejection_for_health_heals_and_an_operators_does_not():
    good = sighting(health="healthy")
    assert event_of(view(State.EJECTED), good) is Event.RECOVERED
    assert event_of(view(State.EJECTED), sighting(health="unhealthy")) is None
    assert event_of(view(State.EJECTED, ejected_by_operator=True), good) is None


@pytest.mark.parametrize(
    "told",
    [
        (),
        (sighting(silent=True),),
        (sighting(revision=4),),  # its table does not know of the drain yet
        (sighting(inflight_requests=1),),
        (sighting(), sighting("node-2", silent=True)),
    ],
)
def test_a_drain_waits_until_all_agents_that_know_of_it_are_empty(told):
    assert event_of(view(State.DRAINING, drain_revision=5), *told) is None


def test_a_drain_ends_when_all_are_empty_or_at_its_deadline():
    draining = view(State.DRAINING, drain_revision=5, drain_deadline_at=NOW)
    assert event_of(draining, sighting(), sighting("node-2")) is Event.EMPTY
    assert event_of(draining, sighting(inflight_requests=3)) is Event.DEADLINE
    later = view(State.DRAINING, drain_revision=5, drain_deadline_at=NOW + timedelta(seconds=1))
    assert event_of(later, sighting(inflight_requests=3)) is None


def test_a_drain_from_before_revisions_were_kept_asks_only_for_emptiness():
    assert event_of(view(State.DRAINING), sighting(revision=0)) is Event.EMPTY


states = st.sampled_from(list(State))
sightings = st.lists(
    st.builds(
        sighting,
        agent=st.sampled_from(["a", "b", "c"]),
        revision=st.integers(0, 20),
        silent=st.booleans(),
        health=st.sampled_from(["unknown", "healthy", "unhealthy"]),
        warmed=st.booleans(),
        inflight_requests=st.integers(0, 3),
    ),
    max_size=4,
)


@given(states, sightings)
def test_every_move_is_one_the_life_cycle_knows(state, told):
    move = next_move(view(state, drain_revision=5), told, now=NOW)
    assert move is None or next_state(state, move.event) is not None


@given(states, st.lists(st.builds(sighting, silent=st.just(True)), max_size=3))
def test_silence_moves_nothing(state, told):
    assert next_move(view(state, drain_revision=5), told, now=NOW) is None


def test_every_state_has_its_row_and_every_event_its_states():
    assert set(MOVES) == set(State)
    for event in Event:
        assert states_accepting(event) == {s for s in State if next_state(s, event) is not None}
