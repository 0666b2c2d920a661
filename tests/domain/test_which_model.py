"""Rules that say which model answers: what is refused, and what they saved."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.domain import which_model
from controlplane.domain.errors import Invalid
from controlplane.domain.fleet_snapshot import FleetSnapshot, ModelRow
from controlplane.domain.tables import compile_table
from routing_agent import wire

CLASSES: list[dict[str, Any]] = [
    {"name": "simple", "model": "small", "below": 1},
    {"name": "complex", "model": "large"},
]
RULE = {"weights": {"questions": 1}, "bias": -1.5, "classes": CLASSES}


def test_a_sound_rule_is_read():
    rule = which_model.complexity_of(RULE)
    assert rule is not None
    assert [one.model for one in rule.classes] == ["small", "large"]
    cascade = which_model.cascade_of({"to": "large", "min_mean_logprob": -1})
    assert cascade == wire.CascadeRule(to="large", min_mean_logprob=-1.0)
    assert which_model.targets(rule, cascade) == {"small", "large"}
    assert which_model.complexity_of(None) is which_model.cascade_of(None) is None
    assert which_model.targets(None, None) == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": {"mood": 1}}, "no feature 'mood'"),
        ({"weights": {"code": "x"}}, "complexity:"),
        ({"classes": []}, "last takes the rest"),
        ({"classes": CLASSES[:1]}, "last takes the rest"),
        ({"classes": [{"name": "a", "model": "m"}, *CLASSES]}, "last takes the rest"),
        ({"classes": [CLASSES[0], CLASSES[0] | {"name": "b"}, CLASSES[1]]}, "rise"),
        ({"classes": [CLASSES[0], {"name": "simple", "model": "m"}]}, "different names"),
        ({"classes": [{"name": "a b", "model": "m"}]}, "different names"),
        ({"classes": [{"name": "cascade", "model": "m"}]}, "taken"),
        ({"wieghts": {}}, "no 'wieghts'"),
    ],
)
def test_a_rule_that_is_not_sound_is_refused_with_the_reason(changes, said):
    with pytest.raises(Invalid, match=said) as refused:
        which_model.complexity_of(RULE | changes)
    assert refused.value.field == "complexity"


@pytest.mark.parametrize("raw", [[], {}, {"to": "m", "min_mean_logprob": 1}, {"to": "m", "x": 1}])
def test_a_cascade_that_is_not_sound_is_refused(raw):
    with pytest.raises(Invalid):
        which_model.cascade_of(raw)


def path(name: str, by: str, output: int, wasted: int = 0) -> wire.ModelPath:
    return wire.ModelPath(
        model="m", path=name, answered_by=by, requests=1, output_tokens=output, wasted_tokens=wasted
    )


def test_what_agents_tell_is_added_up_and_what_was_written_twice_is_taken_off():
    told = [path("cascade", "m", 100), path("cascade", "m", 50), path("escalated", "large", 80, 30)]
    paths = which_model.add_up([*told, path("shape", "pool", 7)])["m"]
    assert paths.requests == 3
    assert paths.lines[0].requests == 2
    assert paths.saved("large") == 150 - 30
    assert paths.saved(None) is None
    assert which_model.ModelPaths(model="x").saved("large") is None


def test_without_the_rule_the_cascades_end_or_the_last_class_would_answer():
    rule = which_model.complexity_of(RULE)
    assert which_model.largest_of(rule, None) == "large"
    assert which_model.largest_of(rule, wire.CascadeRule(to="huge")) == "huge"
    assert which_model.largest_of(None, None) is None


def compiled(**row: object):
    rows = (ModelRow(name="m", **row), ModelRow(name="small"), ModelRow(name="large"))  # type: ignore[arg-type]
    return compile_table(
        FleetSnapshot(revision=1, models=rows), lineage="l", epoch=1, created_at=1.0
    )


def test_rules_are_in_the_table_and_bad_ones_are_left_out_and_said():
    told = compiled(complexity=RULE, cascade={"to": "large"})
    (route,) = [m for m in told.table.models if m.model == "m"]
    assert route.complexity is not None
    assert route.cascade == wire.CascadeRule(to="large")
    for bad in ({"complexity": {"classes": 5}}, {"cascade": {"to": "gone"}}):
        told = compiled(**bad)
        (route,) = [m for m in told.table.models if m.model == "m"]
        assert (route.complexity, route.cascade) == (None, None)
        assert [left.object for left in told.left_out] == ["model m"]
