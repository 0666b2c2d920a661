"""What a fleet lives through, replayed by the default policy: nothing collapses."""

from __future__ import annotations

import argparse
import json
from functools import cache
from xml.etree import ElementTree

import pytest

from bench.scenarios import command
from bench.scenarios.chart import svg
from bench.scenarios.figures import Told, told
from bench.scenarios.plans import QUICK, SCENARIOS, Times
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
