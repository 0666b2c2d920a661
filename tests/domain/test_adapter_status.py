"""One word and one sentence for an adapter on many replicas."""

from __future__ import annotations

import pytest

from controlplane.domain.adapter_status import OnReplica, progress, sharing
from controlplane.domain.placement import LeftOut


def on(replica: str, stage: str | None = "loaded", ago: float | None = 1.0, message: str = ""):
    return OnReplica(replica=replica, stage=stage, heard_s_ago=ago, message=message)


@pytest.mark.parametrize(
    ("told", "code", "said"),
    [
        ([on("a"), on("b")], "serving", "2 of 2 replicas"),
        ([on("a"), on("b", "loading")], "loading", "1 of 2 replicas"),
        ([on("a"), on("b", None)], "loading", "1 of 2 replicas"),
        (
            [on("a"), on("b"), on("c", "failed", message="rank too high")],
            "degraded",
            "2 of 3 replicas; c: rank too high",
        ),
        ([on("a", "failed")], "failed", "0 of 1 replica; a: failed"),
        (
            [on("a", "failed", message="x"), on("b", "failed", message="y")],
            "failed",
            "0 of 2 replicas; a: x (and 1 more)",
        ),
        ([on("a"), on("b", ago=60.0)], "stale", "1 of 2 replicas; nothing heard of 1"),
        ([on("a", None, None)], "stale", "0 of 1 replica; nothing heard of 1"),
        ([], "unplaced", "no replica of its model serves or is starting"),
    ],
)
def test_progress_counts_only_what_was_heard_lately(told, code, said):
    found = progress(told)
    assert (found.code, found.said) == (code, said)
    assert (found.wanted, found.loaded <= found.wanted) == (len(told), True)


def test_an_adapter_without_a_place_says_why():
    gap = LeftOut(served_name="x", replica="a", reason="its rank 128 exceeds 64")
    assert progress([], left_out=[gap]).said == "its rank 128 exceeds 64"


def test_an_adapter_whose_agents_were_not_told_yet_is_about_to_be_loaded():
    found = progress([], planned=3)
    assert (found.code, found.loaded, found.wanted) == ("loading", 0, 3)
    assert found.said == "0 of 3 replicas; their agents are about to be told"


def test_a_deleted_adapter_says_where_it_still_is():
    assert progress([on("a")], is_deleted=True).said == "still on 1 replica"
    assert progress([], is_deleted=True).code == "deleting"


def test_sharing_a_base_model_saves_the_replicas_that_each_adapter_would_need():
    loaded = [("r1", f"acme/{n}", 100) for n in range(5)] + [("r2", "acme/0", 100)]
    told = sharing("m", loaded, weight_bytes=10_000)
    assert (told.adapters, told.replicas, told.replicas_saved) == (5, 2, 3)
    assert (told.bytes_at_most, told.memory_ratio) == (500, 0.05)
    nothing = sharing("m", [], weight_bytes=None)
    assert (nothing.replicas_saved, nothing.memory_ratio) == (0, None)
