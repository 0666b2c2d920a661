"""Which model: classes by a linear score, confidence of a cascade, pools by length."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.core import shapes
from routing_agent.core.cascade import doubt, mean_logprob
from routing_agent.core.complexity import FEATURES, class_of, features, score
from routing_agent.core.explain import explain
from routing_agent.core.fleet import Fleet
from routing_agent.core.shapes import ShapeMemory, TokenRatios, shape_of
from routing_agent.core.table import compile_table
from routing_agent.wire import (
    CascadeRule,
    ComplexityClass,
    ComplexityRule,
    ExplainRequest,
    ModelRoute,
    Pool,
    PoolSettings,
    RoutingTable,
    WeightedPool,
)

RULE = ComplexityRule(
    weights={"questions": 1.0, "code": 2.0, "turns": 0.1},
    bias=-0.5,
    classes=(
        ComplexityClass(name="simple", model="small", below=0.5),
        ComplexityClass(name="complex", model="large"),
    ),
)


def found(text: str, **given: object) -> dict[str, float]:
    options = {"prompt_tokens": 10, "turns": 1, "has_tools": False} | given
    return features(last=text, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there", "simple"),
        ("Explain why the proof holds", "complex"),
        ("```python\ndef f(): pass\n```", "complex"),
    ],
)
def test_a_class_is_the_first_whose_bound_the_score_is_below(text, expected):
    chosen = class_of(RULE, score(RULE, found(text)))
    assert chosen is not None
    assert chosen.name == expected


def test_a_score_above_every_bound_has_no_class_and_unknown_features_count_nothing():
    rule = ComplexityRule(
        weights={"nonsense": 9.0}, classes=(ComplexityClass(name="a", model="m", below=0.0),)
    )
    assert score(rule, found("x")) == 0.0
    assert class_of(rule, 0.0) is None


def test_every_feature_is_told_and_a_long_text_is_looked_at_only_in_part():
    told = found("explain " * 10_000, has_tools=True, prompt_tokens=0)
    assert set(told) == set(FEATURES)
    assert told["questions"] == shapes_of_text(4096)
    assert told["tools"] == 1.0
    assert told["prompt_log2"] == 0.0


def shapes_of_text(letters: int) -> float:
    return float(letters // len("explain "))


def answer(text: str = "Paris.", reason: str = "stop", **given: object) -> dict:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": reason} | given]}


CASCADE = CascadeRule(to="large", min_mean_logprob=-1.0)
SURE = {"content": [{"logprob": -0.1}, {"logprob": -0.3}]}
UNSURE = {"content": [{"logprob": -2.0}, {"logprob": -1.0}]}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (answer(), ""),
        (answer(logprobs=SURE), ""),
        (answer(logprobs=UNSURE), "mean log-probability -1.50 is below -1"),
        (answer(logprobs={"token_logprobs": [None, -3.0]}), "mean log-probability -3.00"),
        (answer(reason="length"), "cut off"),
        (answer("  "), "empty"),
        (answer("I'm sorry, but I can't."), "says that it cannot"),
        (answer("I don't know."), "says that it cannot"),
        ({"choices": [{"text": "Unfortunately I cannot", "finish_reason": "stop"}]}, "cannot"),
        ({"choices": [{"message": {"tool_calls": [{}]}, "finish_reason": "length"}]}, ""),
        ({"choices": []}, ""),
        ({"choices": ["odd"]}, ""),
        ({"choices": [{"message": "odd", "text": 5}]}, "empty"),
        ([], ""),
    ],
)
def test_an_answer_is_doubted_for_a_reason(given, why):
    said = doubt(CASCADE, given)
    assert why in said
    assert bool(said) == bool(why)


def test_marks_and_log_probabilities_can_be_left_out():
    rule = CascadeRule(to="large", on_cut=False, on_refusal=False)
    assert not doubt(rule, answer("I'm sorry", "length", logprobs=UNSURE))


@pytest.mark.parametrize("told", [None, {}, {"content": []}, {"content": [{}]}, {"content": "x"}])
def test_a_mean_of_nothing_is_none(told):
    assert mean_logprob(told) is None


@pytest.mark.parametrize(
    ("limits", "tokens", "expected"),
    [
        ((100, None), 100, 100),
        ((100, None), 101, None),
        ((100, 1000), 5000, 1000),
        ((None,), 5, None),
    ],
)
def test_a_prompt_goes_where_it_fits_closest(limits, tokens, expected):
    assert shape_of(limits, tokens) == expected


def test_a_session_keeps_its_pool_while_it_fits(monkeypatch):
    memory = ShapeMemory()
    limits = (100, 1000, None)
    assert memory.keep(("m", 1), limits, 50) == 100
    assert memory.keep(("m", 1), limits, 500) == 1000
    assert memory.keep(("m", 1), limits, 50) == 1000  # it would fit elsewhere, too
    assert memory.keep(("m", 1), limits, 5000) is None
    assert memory.keep(("m", 1), limits, 50) is None
    assert memory.keep(("m", 1), (100, 1000), 50) == 100  # its pool is gone
    monkeypatch.setattr(shapes, "REMEMBERED", 3)
    for session in range(10):
        memory.keep(("m", session), limits, 50)
    assert len(memory) == 3


@settings(max_examples=50, deadline=None)
@given(st.floats(0.5, 20.0), st.lists(st.integers(1, 100_000), min_size=200, max_size=200))
def test_the_weight_of_a_token_is_learned_from_usage(true, prompts):
    ratios = TokenRatios()
    for tokens in prompts:
        ratios.learn("m", 4.0, round(tokens * 100 * true), tokens * 100)
    assert ratios.ratio("m", 4.0) == pytest.approx(true, rel=0.05)


def test_odd_usage_teaches_nothing_and_models_that_are_gone_are_forgotten():
    ratios = TokenRatios()
    ratios.learn("m", 4.0, 0, 10)
    ratios.learn("m", 4.0, 10, 0)
    assert ratios.learned() == {}
    ratios.learn("m", 4.0, 10_000_000, 1)
    assert ratios.ratio("m", 4.0) < 8.0
    ratios.keep_only({"other"})
    assert ratios.ratio("m", 4.0) == 4.0


def table(**route: object) -> RoutingTable:
    pools = (
        Pool(
            name="short", model="m", version="v1", overload="reject",
            settings=PoolSettings(max_input_tokens=100),
        ),
        Pool(name="long", model="m", version="v1", overload="reject"),
    )  # fmt: skip
    return RoutingTable(
        lineage="l",
        epoch=1,
        fleet_revision=1,
        pools=pools,
        models=(ModelRoute(model="m", **route), ModelRoute(model="large")),  # type: ignore[arg-type]
    )


def test_shapes_are_drawn_among_the_pools_of_a_limit():
    split = (
        WeightedPool(pool="short"),
        WeightedPool(pool="long"),
    )
    model = compile_table(table(split=split)).models["m"]
    assert model.has_shapes
    assert {model.pool_of_shape(s, 100) for s in range(20)} == {"short"}
    assert {model.pool_of_shape(s, None) for s in range(20)} == {"long"}


def test_rules_that_name_what_is_not_there_are_left_out_and_said():
    bad = ComplexityRule(classes=(ComplexityClass(name="a", model="none"),))
    compiled = compile_table(table(complexity=bad, cascade=CascadeRule(to="none")))
    assert compiled.models["m"].complexity is None
    assert compiled.models["m"].cascade is None
    assert len(compiled.faults) == 2
    good = compile_table(table(complexity=ComplexityRule(), cascade=CascadeRule(to="large")))
    assert good.models["m"].cascade is not None
    assert good.faults == ()


def test_explain_follows_the_rules():
    pools = (
        Pool(
            name="short", model="m", version="v1", overload="reject",
            settings=PoolSettings(max_input_tokens=10),
        ),
        Pool(name="long", model="m", version="v1", overload="reject"),
        Pool(name="big", model="large", version="v1", overload="reject"),
    )  # fmt: skip
    split = (WeightedPool(pool="short"), WeightedPool(pool="long"))
    small = ModelRoute(model="small", split=split, cascade=CascadeRule(to="large"))
    models = (
        small,
        ModelRoute(model="large", split=(WeightedPool(pool="big"),)),
        ModelRoute(model="auto", complexity=RULE),
        ModelRoute(model="none", complexity=ComplexityRule()),
    )
    fleet = Fleet()
    told = RoutingTable(
        lineage="l", epoch=1, fleet_revision=1, open_access=True, pools=pools, models=models
    )
    fleet.apply(told, now=0.0, wall=0.0)
    asked = explain(fleet, ExplainRequest(model="auto", prompt="Hello"), now=0.0)
    assert asked.pool == "short"
    assert "class 'simple'" in asked.reason
    assert "'large' if its answer is not trusted" in asked.reason
    long = explain(fleet, ExplainRequest(model="small", prompt="word " * 50), now=0.0)
    assert long.pool == "long"
    assert "any length" in long.reason
    hard = explain(fleet, ExplainRequest(model="auto", prompt="Explain why"), now=0.0)
    assert hard.pool == "big"
    assert explain(fleet, ExplainRequest(model="none", prompt="x"), now=0.0).error
