"""Where a new replica goes, and why not elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.domain.replica_placement import Need, NodeRoom, place

GB = 10**9


def room(name: str = "n", **given: Any) -> NodeRoom:
    fields: dict[str, Any] = {
        "programs": ("vllm",),
        "gpus": {0: 80 * GB, 1: 80 * GB},
        "free_ports": (8400, 8401),
    }
    return NodeRoom(name=name, **(fields | given))


NEED = Need(program="vllm", weight_bytes=16 * GB, kv_bytes=4 * GB)


def test_another_zone_comes_before_a_free_machine():
    nodes = [room("a", zone="x", replicas=1), room("b", zone="y", held=frozenset({0}))]
    found = place(NEED, nodes)
    assert (found.node, found.gpus, found.port) == ("b", (1,), 8400)
    assert found.reason == "b (zone y has 0 of the pool, 1 GPUs free)"
    assert found.passed == {"a": "zone x has 1 of the pool already"}


def test_within_a_zone_the_node_with_fewer_of_the_pool():
    found = place(NEED, [room("a", replicas=1), room("b")])
    assert found.node == "b"
    assert found.passed == {"a": "it has 1 of the pool already"}


def test_of_equals_the_emptier_and_one_to_avoid_last():
    found = place(NEED, [room("a", held=frozenset({0})), room("b"), room("c", avoided="it failed")])
    assert found.node == "b"
    assert found.passed == {
        "a": "as good: the emptier, then the first by name, is taken",
        "c": "it failed",
    }
    assert place(NEED, [room("c", avoided="it failed")]).node == "c"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"programs": ()}, "its agent starts no engines (--engine-ports)"),
        ({"is_live": False}, "its agent is not heard"),
        ({"programs": ("sglang",)}, "its agent may not start vllm"),
        ({"held": frozenset({0, 1})}, "0 of 2 GPUs are free, 1 are needed"),
        ({"free_ports": ()}, "all its engine ports are taken"),
        (
            {"gpus": {0: 16 * GB}},
            "the weights (16.0 GB) do not fit into 1 GPU of 16 GB",
        ),
        (
            {"gpus": {0: 24 * GB}},
            "3.6 GB are left for the KV cache, one request of full length needs 4.0 GB",
        ),
    ],
)
def test_a_node_is_passed_over_with_its_reason(given, why):
    found = place(NEED, [room("a", **given)])
    assert found.node is None
    assert found.reason == f"a: {why}"


def test_what_is_not_known_is_left_to_the_engine():
    assert place(Need(program="vllm"), [room("a", gpus={0: 1})]).node == "a"
    assert place(NEED, [room("a", gpus={0: 0})]).node == "a"


def test_several_gpus_are_the_largest_free_ones():
    node = room("a", gpus={0: 80 * GB, 1: 40 * GB, 2: 80 * GB})
    assert place(Need(program="vllm", gpus=2), [node]).gpus == (0, 2)


def test_without_nodes_there_is_no_place():
    assert place(NEED, []).reason == "there are no nodes"
