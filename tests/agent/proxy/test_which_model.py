"""Which model answers, over sockets: by class, by cascade, by length."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from routing_agent import metrics_page, wire
from routing_agent.core.sampling import threshold
from tests.agent.proxy.client import chat
from tests.agent.proxy.conftest import Rig
from tests.fakes.engine import Call, Script, completion, obliging

STREAM = chat(stream=True)


def answering(text: str = "Paris.", *, logprob: float | None = None, **usage: int) -> Script:
    """An engine that answers with a text, and its log-probability if it is asked for it."""

    async def script(call: Call) -> None:
        body = completion(text, **usage)
        if logprob is not None and call.json().get("logprobs"):
            body["choices"][0]["logprobs"] = {"content": [{"logprob": logprob}]}
        await call.answer(200, body)

    return script


def failing(status: int = 500) -> Script:
    async def script(call: Call) -> None:
        await call.answer(status, {"error": {"message": "no"}})

    return script


async def two_models(rig: Rig, small: Script, large: Script, **route: Any) -> None:
    """Serve a model "m" by the first engine and "large" by the second."""
    await rig.start(small, large)
    settings = wire.PoolSettings(retry_backoff_s=0.01, slow_start_s=0, max_retries=0)
    pools = tuple(
        wire.Pool(
            name=name, model=name, version="1", overload="queue", settings=settings,
            endpoints=(rig.endpoint(i),),
        )
        for i, name in enumerate(("m", "large"))
    )  # fmt: skip
    models = (
        wire.ModelRoute(model="m", split=(wire.WeightedPool(pool="m"),), **route),
        wire.ModelRoute(model="large", split=(wire.WeightedPool(pool="large"),)),
        wire.ModelRoute(
            model="auto",
            complexity=wire.ComplexityRule(
                weights={"questions": 1.0},
                classes=(
                    wire.ComplexityClass(name="simple", model="m", below=0.5),
                    wire.ComplexityClass(name="complex", model="large"),
                ),
            ),
        ),
    )
    rig.apply(models=models, pools=pools)


def cascade(**given: Any) -> dict[str, Any]:
    return {"cascade": wire.CascadeRule(to="large", **given)}


async def test_a_simple_question_goes_to_the_small_model_and_a_complex_one_to_the_large(rig):
    await two_models(rig, obliging(), obliging())
    reply = await rig.ask(chat(model="auto"))
    assert (reply.headers["x-signalbox-model"], reply.headers["x-signalbox-class"]) == (
        "m", "simple",
    )  # fmt: skip
    body = chat(model="auto", messages=[{"role": "user", "content": "Explain why it holds"}])
    reply = await rig.ask(body)
    assert (reply.headers["x-signalbox-model"], reply.headers["x-signalbox-class"]) == (
        "large", "complex",
    )  # fmt: skip
    assert rig.calls == [1, 1]
    assert [c.json()["model"] for e in rig.engines for c in e.calls] == ["m", "large"]
    assert [r.model for r in rig.records] == ["m", "large"]
    reply = await rig.ask({"model": "auto", "prompt": "Why?"}, path="/v1/completions")
    assert reply.headers["x-signalbox-class"] == "complex"


async def test_a_class_is_told_also_where_its_model_has_a_cascade(rig):
    await two_models(rig, answering("I'm sorry."), answering("from the large"), **cascade())
    reply = await rig.ask(chat(model="auto"))
    assert reply.headers["x-signalbox-class"] == "simple"
    assert reply.headers["x-signalbox-route"] == "cascade"


async def test_a_good_answer_of_the_small_model_is_given(rig):
    await two_models(rig, answering(), answering("from the large"), **cascade())
    reply = await rig.ask(chat())
    assert reply.json()["choices"][0]["message"]["content"] == "Paris."
    assert reply.headers["x-signalbox-route"] == "cascade"
    assert reply.headers["x-signalbox-model"] == "m"
    assert rig.calls == [1, 0]


async def test_a_doubtful_answer_is_replaced_by_the_large_models(rig):
    small = answering("I'm sorry, I can't.", output=9)
    lives: list[wire.RequestRecord] = []
    rig.proxy.on_record, rig.proxy.keep_below = lives.append, threshold(1.0)
    await two_models(rig, small, answering("from the large"), **cascade())
    reply = await rig.ask(chat())
    assert reply.json()["choices"][0]["message"]["content"] == "from the large"
    assert reply.headers["x-signalbox-route"] == "cascade"
    assert reply.headers["x-signalbox-model"] == "large"
    doubted, taken = lives[0].attempts
    assert (doubted.outcome, taken.outcome) == ("unsure", "good")
    assert doubted.reason.startswith("its answer is not trusted: ")
    assert "no first token came" not in [stage.reason for stage in lives[0].stages]
    assert rig.calls == [1, 1]
    (record,) = rig.records
    assert (record.status, record.model, record.output_tokens) == (200, "large", 7)
    assert rig.metrics.paths == {("m", "escalated", "large"): [1, 11, 7, 9]}
    assert rig.replica(0).errors_total == 0
    page = metrics_page.render(rig.metrics, rig.fleet, now=0.0)
    assert "cascade_wasted_tokens_total" in page


@pytest.mark.parametrize(("logprob", "calls"), [(-0.1, [1, 0]), (-2.0, [1, 1])])
async def test_log_probabilities_are_asked_for_judged_and_not_passed_on(rig, logprob, calls):
    small = answering(logprob=logprob)
    await two_models(rig, small, answering("sure"), **cascade(min_mean_logprob=-1.0))
    reply = await rig.ask(chat())
    assert rig.calls == calls
    assert not reply.json()["choices"][0].get("logprobs")
    assert rig.engines[0].calls[0].json()["logprobs"] is True


async def test_log_probabilities_that_the_client_asked_for_are_kept(rig):
    await two_models(rig, answering(logprob=-0.1), obliging(), **cascade(min_mean_logprob=-1.0))
    reply = await rig.ask(chat(logprobs=True))
    assert reply.json()["choices"][0]["logprobs"]


async def test_a_stream_goes_to_the_large_model_at_once(rig):
    await two_models(rig, obliging(), obliging(), **cascade())
    reply = await rig.ask(STREAM)
    assert reply.headers["x-signalbox-model"] == "large"
    assert rig.calls == [0, 1]
    assert ("m", "direct", "large") in rig.metrics.paths


async def test_if_the_large_model_fails_the_small_ones_answer_is_better_than_none(rig):
    await two_models(rig, answering("I'm sorry."), failing(), **cascade())
    reply = await rig.ask(chat())
    assert (reply.status, reply.json()["choices"][0]["message"]["content"]) == (200, "I'm sorry.")
    assert reply.headers["x-signalbox-model"] == "m"
    assert (rig.records[0].status, rig.records[0].model) == (200, "m")


async def test_if_nothing_serves_the_large_model_the_small_ones_answer_is_given(rig):
    await two_models(rig, answering("I'm sorry."), obliging(), **cascade())
    models = tuple(
        wire.ModelRoute(model="large") if m.model == "large" else m for m in rig.table.models
    )
    rig.apply(models=models)
    assert (await rig.ask(chat())).status == 200
    assert (await rig.ask(STREAM)).headers["x-signalbox-model"] == "m"


async def test_an_error_of_the_small_model_is_no_reason_to_ask_the_large_one(rig):
    await two_models(rig, failing(400), obliging(), **cascade())
    assert (await rig.ask(chat())).status == 400
    assert rig.calls == [1, 0]


async def test_long_prompts_go_to_the_long_pool_and_the_session_stays_there(rig):
    await two_models(rig, obliging(), obliging())
    split = (wire.WeightedPool(pool="m"), wire.WeightedPool(pool="large"))
    small, large = rig.table.pools
    short = replace(small, settings=replace(small.settings, max_input_tokens=50))
    rig.apply(models=(wire.ModelRoute(model="m", split=split),), pools=(short, large))
    long = chat(messages=[{"role": "user", "content": "word " * 200}], session_id="s")
    assert (await rig.ask(chat(session_id="s"))).headers["x-signalbox-pool"] == "m"
    assert (await rig.ask(long)).headers["x-signalbox-pool"] == "large"
    assert (await rig.ask(chat(session_id="s"))).headers["x-signalbox-pool"] == "large"
    assert (await rig.ask(chat(session_id="t"))).headers["x-signalbox-pool"] == "m"
    assert rig.fleet.ratios.learned()["m"] != 4.0  # calibrated by the engines' usage figures
    assert rig.metrics.paths[("m", "shape", "m")][0] == 2


async def test_a_model_without_rules_says_nothing_of_them(rig):
    await rig.start(obliging())
    reply = await rig.ask(chat())
    assert "x-signalbox-model" not in reply.headers
    assert rig.metrics.paths == {}
