"""Replays from the planner: recorded minutes over simulated fleets, or the reason why not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.utils import timezone

from controlplane.domain.planning import plan
from controlplane.domain.planning_inputs import gathered
from controlplane.planning import what_if
from controlplane.planning.what_if import requests_of
from controlplane.telemetry import peaks
from controlplane.telemetry.models import Step
from tests.controlplane.calling import caller, ok
from tests.controlplane.staff import signed_in

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]
MODEL = {"model": "qwen2.5-7b", "gpu": "a100-80gb"}


def replayed(pool="chat", **entered):
    made = plan(gathered(MODEL | entered, {}))
    return what_if.what_if(made, pool=pool, now=timezone.now())


def stretch(at_most):
    since = timezone.now() - timedelta(hours=48)
    return peaks.busiest_minutes("pool", "chat", since=since, minutes=10, requests_at_most=at_most)


@pytest.fixture
def busy(pool, roll_up):
    """Three minutes with 100, 300 and 60 requests; lengths 1,000 and 10 tokens."""

    def minute(ago, requests, **given):
        return roll_up(
            requests / 60, ago=timedelta(minutes=ago), step=Step.MINUTE, requests=requests,
            prompt_tokens=1000 * requests, output_tokens=10 * requests, **given,
        )  # fmt: skip

    minute(600, 10)
    first = minute(62, 100)
    minute(61, 200)
    minute(61, 100, version="v2")
    minute(60, 60)
    return first


def test_the_busiest_stretch_is_found_and_versions_count_together(busy):
    found = stretch(at_most=1000)
    assert [m.requests for m in found] == [100, 300, 60]
    assert found[0].at == busy
    assert found[1].prompt_tokens == 300_000


@pytest.mark.parametrize(
    ("at_most", "kept"), [(460, [100, 300, 60]), (459, [100, 300]), (399, [300]), (299, [])]
)
def test_a_stretch_that_is_too_much_gets_shorter_and_stays_the_busiest(busy, at_most, kept):
    assert [m.requests for m in stretch(at_most)] == kept


def test_requests_have_their_minutes_number_and_mean_length_and_come_as_fast_as_asked(busy):
    minutes = stretch(at_most=1000)
    trace = requests_of(minutes, factor=2.0)
    assert len(trace) == 460
    assert {(r.prompt_tokens, r.output_tokens) for r in trace} == {(1000, 10)}
    times = [r.at_s for r in trace]
    assert times == sorted(times)
    assert sum(30 <= at < 60 for at in times) == 300  # the second minute, twice as fast
    assert trace == requests_of(minutes, factor=2.0)


def test_more_replicas_wait_less(busy):
    found = replayed()
    assert [p.replicas for p in found.points] == [1, 2, 4, 8]
    p99 = [p.ttft_p99_s for p in found.points]
    assert p99 == sorted(p99, reverse=True)
    assert p99[0] > 2 * p99[-1]
    assert found.at == busy
    assert "460 requests in the busiest 3 min of pool chat" in found.source


def test_fleets_are_those_around_the_planned_size(busy):
    found = replayed(peak_requests_per_s=5, replica_requests_per_s=2, buffer_ratio=0.5)
    assert [p.replicas for p in found.points] == [2, 3, 4, 5, 6]
    assert "the busiest brought to 5 requests/s" in found.source
    found = replayed(peak_requests_per_s=5, replica_requests_per_s=10)
    assert [p.replicas for p in found.points] == [1, 2, 3]


@pytest.mark.parametrize(
    ("entered", "told"),
    [
        ({"pool": None}, "Choose a pool"),
        ({"gpu": None}, "Name a GPU of the table"),
        ({"model": None, "parameters": 1e9}, "Name a model"),
        ({"gpus_per_replica": 2}, "on one GPU"),
        ({"weight_dtype": "int4"}, "16-bit weights"),
        ({"model": "llama-3.1-8b", "gpu": "l4"}, None),
        ({"model": "llama-2-7b", "gpu": "l4"}, "fewer than 16 384 tokens"),
        ({"peak_requests_per_s": 500}, "100 times that of the minutes recorded"),
        ({"peak_requests_per_s": 0}, "0 times that of the minutes recorded"),
        ({"peak_requests_per_s": 5, "replica_requests_per_s": 0.01}, "at most 100 replicas"),
    ],
)
def test_what_cannot_be_replayed_says_why(busy, entered, told):
    found = replayed(**entered)
    assert (told or "") in found.missing
    assert bool(found.missing) == (told is not None)
    assert bool(found.points) == (told is None)


def test_without_recorded_minutes_there_is_no_replay(pool, roll_up):
    assert "Pool chat had no request" in replayed().missing
    roll_up(0.0, ago=timedelta(minutes=60), step=Step.MINUTE)
    assert "Pool chat had no request" in replayed().missing


def test_minutes_too_busy_for_a_page_are_left_to_the_command(pool, roll_up):
    roll_up(99.0, ago=timedelta(minutes=60), step=Step.MINUTE, requests=5000)
    assert "`python -m routing_agent replay` takes any trace" in replayed().missing


def test_page_api_and_command_show_the_replay_where_it_is_asked_for(busy, capsys):
    query = "pool=chat&gpu=a100-80gb"
    console = signed_in("viewer")
    assert "more replicas, or fewer" not in console.get(f"/planning/?{query}").content.decode()
    body = console.get(f"/planning/?{query}&what_if=on").content.decode()
    assert "Simulated: 460 requests in the busiest 3 min of pool chat" in body
    told = ok(
        caller("viewer").post(
            "/api/v1/plan/", {"pool": "chat", "gpu": "a100-80gb", "what_if": True}, format="json"
        )
    )["what_if"]
    assert [p["replicas"] for p in told["points"]] == [1, 2, 4, 8]
    call_command("plan", "--pool=chat", "--gpu=a100-80gb", "--what-if")
    assert "8 replicas: TTFT P50" in capsys.readouterr().out
    call_command("plan", "--pool=chat", "--what-if")
    assert "Not replayed: Name a GPU of the table" in capsys.readouterr().out
    body = console.get("/planning/?pool=chat&what_if=on").content.decode()
    assert "— Name a GPU of the table" in body
