"""What a pool tells the planner: each value with its source and age, or why there is none."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.domain.errors import Invalid, NotFound
from controlplane.fleet.models import Agent, Node, Replica
from controlplane.planning.selectors import planned, pool_facts
from controlplane.telemetry import peaks
from controlplane.telemetry.models import Step
from tests.factories import make_node, make_pool, make_replica

pytestmark = pytest.mark.django_db


def facts(slug="chat"):
    return pool_facts(slug, now=timezone.now())


def test_the_peak_is_the_busiest_of_90_days_with_its_time_and_how_much_is_known(pool, roll_up):
    roll_up(12.0, ago=timedelta(hours=5))
    at = roll_up(40.0, ago=timedelta(days=30))
    roll_up(900.0, ago=timedelta(days=91))
    known = facts().known["peak_requests_per_s"]
    assert (known.value, known.at) == (40.0, at)
    assert "busiest 5 s of pool chat in the last 90 days" in known.source
    assert "(2.0 h of them known)" in known.source


def test_minutes_since_the_last_whole_hour_count_too(pool, roll_up):
    roll_up(12.0, ago=timedelta(hours=2))
    at = roll_up(50.0, ago=timedelta(minutes=30), step=Step.MINUTE)
    roll_up(70.0, ago=timedelta(minutes=90), step=Step.MINUTE)  # within the hour's row
    assert facts().known["peak_requests_per_s"].at == at


def test_versions_of_a_pool_share_their_time(pool, roll_up):
    roll_up(12.0, ago=timedelta(hours=5))
    roll_up(13.0, ago=timedelta(hours=5), version="v2")
    found = peaks.peak("pool", "chat", since=timezone.now() - timedelta(days=1))
    assert (found.requests_per_s, found.covered_s) == (13.0, 3600)


def test_a_pool_that_had_no_request_has_a_peak_of_zero_and_one_never_heard_of_has_none(
    pool, roll_up
):
    assert "peak_requests_per_s" not in facts().known
    assert facts().missing["peak_requests_per_s"] == "nothing was reported of pool chat in 90 days"
    roll_up(0.0, ago=timedelta(hours=1))
    assert facts().known["peak_requests_per_s"].value == 0.0


def test_the_versions_facts_come_with_its_name(pool):
    known = facts().known
    assert (known["kv_heads"].value, known["head_size"].value) == (4, 128)
    assert known["layers"].source == "registered for version m:v1"
    assert known["layers"].at is None


def test_a_version_registered_without_facts_says_which_are_missing(db):
    make_pool("bare", model="plain")
    told = facts("bare")
    assert told.missing["parameters"] == "version plain:v1 is registered without its facts"
    assert told.known["weight_dtype"].value == "bf16"
    assert "registered with the GPUs it runs on" in told.missing["gpu_memory_gb"]


def test_gpus_are_those_its_replicas_run_on_as_the_agent_last_said(pool):
    known = facts().known
    assert (known["gpu_memory_gb"].value, known["gpus_per_replica"].value) == (80.0, 1)
    assert known["gpu_memory_gb"].source == "H100 on node node-1, by its agent"
    assert known["gpu_memory_gb"].at == Agent.objects.get().last_seen_at


def test_of_unlike_gpus_the_smallest_counts_and_of_unlike_replicas_the_largest(pool):
    card = {"index": 0, "model": "L4", "memory_bytes": 24 * 10**9, "simulated": True}
    small = make_node("node-2", gpus=[card, card | {"index": 1}])
    make_replica(pool, node=small, gpu_indices=[0, 1])
    known = facts().known
    assert known["gpu_memory_gb"].value == 24.0
    assert known["gpu_memory_gb"].source == (
        "L4 (simulated) on node node-2, as declared, the smallest of 2 kinds"
    )
    assert known["gpu_memory_gb"].at is None
    assert known["gpus_per_replica"].source == "pool chat, the most of 3 replicas"


def test_stopped_replicas_and_gpus_without_a_size_tell_nothing(pool):
    Node.objects.update(gpus=[{"index": 0, "model": "H100", "memory_bytes": 0}])
    assert facts().missing["gpu_memory_gb"].startswith("no node of pool chat says")
    Replica.objects.update(state="stopped")
    assert "gpus_per_replica" in facts().missing


def test_a_plan_for_a_pool_needs_no_more_than_its_productivity(pool, roll_up):
    roll_up(200.0, ago=timedelta(hours=3))
    found = planned(
        entered={"replica_requests_per_s": 50, "gpu": None}, pool="chat", now=timezone.now()
    )
    assert found.plan.result("replicas") == 6
    assert found.plan.result("kv_per_token") == 56 * 1024
    assert found.plan.result("concurrency") is not None
    assert found.missing == {}


def test_what_was_entered_is_not_called_missing(pool):
    found = planned(entered={"peak_requests_per_s": 3.0}, pool="chat", now=timezone.now())
    assert "peak_requests_per_s" not in found.missing


def test_a_pool_that_tells_nothing_is_refused_with_why(db):
    make_pool("bare", model="plain")
    with pytest.raises(Invalid, match="Nothing can be calculated") as caught:
        planned(entered={}, pool="bare", now=timezone.now())
    assert caught.value.code == "too_little"
    assert "nothing was reported of pool bare in 90 days" in caught.value.message
    assert caught.value.message.count("version plain:v1 is registered without its facts") == 1


def test_a_contradiction_is_told_as_it_is_whatever_the_pool_lacks(pool):
    with pytest.raises(Invalid, match="cannot be dealt out over 3 GPUs"):
        planned(entered={"gpus_per_replica": 3}, pool="chat", now=timezone.now())


def test_a_pool_that_is_not_there_is_not_found(db):
    with pytest.raises(NotFound, match="no pool 'nowhere'"):
        facts("nowhere")
