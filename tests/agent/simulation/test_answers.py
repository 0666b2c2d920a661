"""What a simulated engine can answer beside plain words: tool calls, log-probabilities, choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.agent.simulation.conftest import RunningEngine, events, said
from tests.agent.waiting import until

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
                "exact": {"type": "boolean"},
                "odd": {"type": ["string", "null"]},
                "places": {"type": "array"},
            },
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


async def message(engine: RunningEngine, **fields: object) -> tuple[dict[str, Any], str]:
    choice = (await engine.chat(**fields)).json()["choices"][0]
    return choice["message"], choice["finish_reason"]


async def test_an_offered_tool_is_called_with_arguments_of_its_schema(
    engine: RunningEngine,
) -> None:
    answer, reason = await message(engine, tools=[WEATHER])
    assert (answer["content"], reason) == (None, "tool_calls")
    [call] = answer["tool_calls"]
    assert call["function"]["name"] == "weather"
    arguments = json.loads(call["function"]["arguments"])
    assert [type(value) for value in arguments.values()] == [str, int, str, bool, str, list]
    assert arguments["unit"] in ("C", "F")


async def test_a_streamed_call_has_its_name_first_and_the_same_arguments(
    engine: RunningEngine,
) -> None:
    whole, _ = await message(engine, tools=[WEATHER])
    stream = events((await engine.chat(tools=[WEATHER], stream=True)).text)
    deltas = [event["choices"][0]["delta"] for event in stream]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "weather", "arguments": ""}
    assert calls[0]["id"].startswith("chatcmpl-tool-")
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == whole["tool_calls"][0]["function"]["arguments"]
    assert stream[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_the_choice_of_a_tool_is_obeyed(engine: RunningEngine) -> None:
    tools, named = [WEATHER, CLOCK], {"type": "function", "function": {"name": "clock"}}
    answer, _ = await message(engine, tools=tools, tool_choice=named)
    assert answer["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
    answer, _ = await message(engine, tools=tools, tool_choice="required")
    assert answer["tool_calls"]
    answer, reason = await message(engine, tools=tools, tool_choice="none")
    assert answer["content"]
    assert reason == "stop"
    nobody = {"type": "function", "function": {"name": "nobody"}}
    assert (await engine.chat(tools=tools, tool_choice=nobody)).status_code == 400


async def test_after_the_result_of_a_tool_it_speaks(engine: RunningEngine) -> None:
    question = {"role": "user", "content": "rain?"}
    call, _ = await message(engine, messages=[question], tools=[WEATHER])
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "no"}
    answer, reason = await message(engine, messages=[question, call, result], tools=[WEATHER])
    assert answer["content"]
    assert reason == "stop"


async def test_a_call_that_is_cut_short_says_so(engine: RunningEngine) -> None:
    answer, reason = await message(engine, tools=[WEATHER], max_tokens=2)
    assert reason == "length"
    assert len(answer["tool_calls"][0]["function"]["arguments"]) == 12


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_differ_and_count_as_one_prompt(
    engine: RunningEngine, stream: bool
) -> None:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    fields: dict[str, Any] = {"n": 3, "max_tokens": 6, "ignore_eos": True, "stream": stream}
    answer = await engine.chat(**fields, **options)
    if stream:
        *chunks, last = events(answer.text)
        texts = ["", "", ""]
        for choice in (c for chunk in chunks for c in chunk["choices"]):
            texts[choice["index"]] += choice["delta"].get("content", "")
        usage = last["usage"]
        assert answer.text.endswith("data: [DONE]\n\n")
    else:
        body = answer.json()
        texts = [choice["message"]["content"] for choice in body["choices"]]
        usage = body["usage"]
    assert len(set(texts)) == 3
    alone = (await engine.chat(max_tokens=6, ignore_eos=True)).json()
    assert texts[0] == alone["choices"][0]["message"]["content"]
    assert usage["completion_tokens"] == 18
    assert usage["prompt_tokens"] == alone["usage"]["prompt_tokens"]


async def test_a_client_that_leaves_takes_all_its_choices_along(engine: RunningEngine) -> None:
    await engine.switch(slow=50)
    _, writer = await engine.open_stream(n=3, max_tokens=500)
    assert engine.server.engine.jobs == 3
    writer.close()
    await until(lambda: engine.server.engine.jobs == 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_chat_name_every_token(
    engine: RunningEngine, stream: bool
) -> None:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "max_tokens": 5}
    answer = await engine.chat(**fields, stream=stream)
    if stream:
        text = said(answer.text)
        told = [c["logprobs"] for event in events(answer.text) for c in event["choices"]]
        content = [token for one in told if one for token in one["content"]]
    else:
        [choice] = answer.json()["choices"]
        text, content = choice["message"]["content"], choice["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == text
    assert all(token["logprob"] <= 0 for token in content)
    assert all(bytes(token["bytes"]).decode() == token["token"] for token in content)
    assert all(token["top_logprobs"][0]["token"] == token["token"] for token in content)
    assert {len(token["top_logprobs"]) for token in content} == {2}


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_of_a_completion_have_their_offsets(
    engine: RunningEngine, stream: bool
) -> None:
    body = {"model": "m", "prompt": "hi", "max_tokens": 5, "logprobs": 2, "stream": stream}
    answer = await engine.client.post("/v1/completions", json=body)
    whole = events(answer.text) if stream else [answer.json()]
    choices = [choice for one in whole for choice in one["choices"]]
    text = "".join(choice["text"] for choice in choices)
    for choice in choices:
        told = choice["logprobs"]
        parts = zip(told["text_offset"], told["tokens"], strict=True)
        assert all(text[at : at + len(token)] == token for at, token in parts)
        assert all(len(best) == 2 for best in told["top_logprobs"])
