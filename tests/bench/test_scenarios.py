"""What a fleet lives through, replayed by the default policy: nothing collapses."""

from __future__ import annotations

import argparse
import json
from functools import cache
from xml.etree import ElementTree

import msgspec
import pytest

from bench.live.records import Record
from bench.scenarios import command
from bench.scenarios.chart import svg
from bench.scenarios.figures import Told, told
from bench.scenarios.live import counted_part, faster, flight_of, replayed_beside
from bench.scenarios.plans import QUICK, SCENARIOS, Times
from routing_agent.engine.base import EngineLoad
from routing_agent.simulation.fleet_replay import FleetReplay
from routing_agent.wire import PoolSettings

REPLICAS = 4
BY_NAME = {one.name: one for one in SCENARIOS}


@cache
def lived(name: str) -> Told:
    course = BY_NAME[name].course(QUICK, REPLICAS)
    policy = PoolSettings().policy
    return told(policy, course, QUICK, FleetReplay(course.plan(policy)).run(course.requests))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_nothing_collapses(name):
    """The replay is the same on every machine, so bounds may be near what is seen.

    Meanwhile the mean time to the first token is at most four times that before (a flood doubles
    the work) and its P99 four times; soon after all is as it was; few sessions lose their replica,
    but those that a new agent has never heard of.
    """
    one = lived(name)
    assert one.shed == 0
    assert one.event.ttft_mean_s < 4 * one.steady.ttft_mean_s
    assert one.event.ttft_p99_s < 4 * one.steady.ttft_p99_s
    assert one.after.ttft_mean_s < 1.6 * one.steady.ttft_mean_s
    assert one.after.ttft_p99_s < 1.6 * one.steady.ttft_p99_s
    assert one.after.hit_rate > one.steady.hit_rate - 0.03
    assert one.event.moves < one.event.requests * (0.3 if name == "fresh-agent" else 0.1)
    assert one.after.moves < one.after.requests * 0.06


def test_a_hot_prefix_comes_to_as_many_replicas_as_it_needs():
    """What its sessions have of their own fills one replica: it is on two, not on all."""
    assert lived("hot-prefix").hot_on in (2, 3)


def test_a_tired_replica_is_given_less_and_a_grown_fleet_is_used():
    course = BY_NAME["third-of-speed"].course(QUICK, REPLICAS)
    flights = FleetReplay(course.plan("expected_ttft")).run(course.requests)
    meanwhile = [f for f in flights if QUICK.begins + 5 <= f.request.at_s < QUICK.ends]
    shares = [sum(f.uncached_tokens for f in meanwhile if f.engine == n) for n in range(REPLICAS)]
    assert shares[0] < sum(shares) / REPLICAS
    times = Times(before=30.0, event=70.0, after=10.0)
    grown = BY_NAME["scaled"].course(times, REPLICAS)
    flights = FleetReplay(grown.plan("expected_ttft")).run(grown.requests)
    before = {f.engine for f in flights if f.request.at_s < grown.changes[0].at_s}
    after = {f.engine for f in flights if f.request.at_s > grown.changes[1].at_s}
    assert before | after <= set(range(REPLICAS // 2))
    assert {f.engine for f in flights} == set(range(REPLICAS))


def test_the_command_draws_and_tells_what_was_asked_for(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "REPLICAS", 2)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["--only", "flood", "--quick", "--charts", str(tmp_path), "--json"]
    assert command.main(parser.parse_args(words)) == 0
    found = json.loads(capsys.readouterr().out)["flood"]
    assert [one["policy"] for one in found] == list(command.POLICIES)
    assert len(found[0]["moments"]) == 13
    picture = (tmp_path / "flood.svg").read_text()
    assert len(ElementTree.fromstring(picture).findall("{*}path")) == 3 + 3 * 3
    assert command.main(parser.parse_args(["--only", "nonsense"])) == 2
    assert "known: hot-prefix" in capsys.readouterr().err


def test_a_table_and_a_chart_are_made_of_what_was_told():
    one = lived("flood")
    text = command.table({"flood": [one]})
    assert "| A flood of unique prompts | `expected_ttft` |" in text
    assert svg("A < B", QUICK, [one]).count("A &lt; B") == 2


def test_live_the_same_requests_go_faster_and_answers_become_flights():
    course, times = faster(BY_NAME["scaled"].course(QUICK, REPLICAS), QUICK, 2.0)
    replayed = BY_NAME["scaled"].course(QUICK, REPLICAS)
    assert (times.begins, times.over) == (QUICK.begins / 2, QUICK.over / 2)
    assert [2 * one.at_s for one in course.requests] == [one.at_s for one in replayed.requests]
    assert [2 * one.at_s for one in course.changes] == [one.at_s for one in replayed.changes]

    def record(**fields):
        given = {"outcome": "ok", "replica": "replica-3", "ttft_s": 0.5, "cached_tokens": 64}
        return Record(
            number=7, request_id="", url="", tenant="", at=0.0, planned_s=0.0, late_s=0.0,
            wanted_prompt_tokens=0, wanted_output_tokens=0, **(given | fields),
        )  # fmt: skip

    beside = replayed_beside(BY_NAME["fresh-agent"], QUICK, "expected_ttft", 2, 2.0)
    assert (beside.policy, beside.shed) == ("expected_ttft replayed", 0)
    flight = flight_of(record(), course)
    assert (flight.engine, flight.ttft_s, flight.cached_tokens) == (2, pytest.approx(0.5), 64)
    assert flight.request is course.requests[7]
    failed = flight_of(record(outcome="503 no_replica", replica="", ttft_s=None), course)
    assert (failed.engine, failed.ttft_s, failed.reason) == (None, None, "503 no_replica")
    counted = counted_part(
        lived("flood").steady,
        [EngineLoad(prompt_tokens_total=0, cached_prompt_tokens_total=0)] * 2,
        [EngineLoad(prompt_tokens_total=9, cached_prompt_tokens_total=6),
         EngineLoad(prompt_tokens_total=3, cached_prompt_tokens_total=2)],
    )  # fmt: skip
    assert (counted.hit_rate, counted.work_max_mean) == (pytest.approx(2 / 3), 1.5)
    assert ", 67%, 1.50, " in command.table({"flood": [told_with(counted)]}, has_work=True)


def told_with(part):
    return msgspec.structs.replace(lived("flood"), steady=part)
