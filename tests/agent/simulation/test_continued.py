"""A chat that is to be written on: the simulated engine says what it would have said anyway."""

from __future__ import annotations

from tests.agent.simulation.conftest import RunningEngine

ASKED = {"role": "user", "content": "hello"}


async def test_it_writes_on_where_its_own_words_end(engine: RunningEngine) -> None:
    """From the middle of a word, too."""
    whole = (await engine.chat(max_tokens=40)).json()
    text = whole["choices"][0]["message"]["content"]
    for cut in (7, 23, len(text) - 3):
        answer = await engine.client.post("/v1/chat/completions", json={
            "messages": [ASKED, {"role": "assistant", "content": text[:cut]}],
            "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 40,
        })  # fmt: skip
        rest = answer.json()["choices"][0]["message"]["content"]
        assert (text[:cut] + rest).startswith(text)
        assert answer.json()["usage"]["prompt_tokens"] > whole["usage"]["prompt_tokens"]


async def test_words_that_are_not_its_own_are_gone_on_from_all_the_same(
    engine: RunningEngine,
) -> None:
    """Another model may have begun."""
    answer = await engine.client.post("/v1/chat/completions", json={
        "messages": [ASKED, {"role": "assistant", "content": "Qwxz"}],
        "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 9,
    })  # fmt: skip
    assert answer.json()["usage"]["completion_tokens"] == 9


async def test_both_flags_at_once_are_refused(engine: RunningEngine) -> None:
    """As by vLLM, whose default for the prompt is on."""
    answer = await engine.client.post("/v1/chat/completions", json={
        "messages": [ASKED, {"role": "assistant", "content": "x"}], "continue_final_message": True,
    })  # fmt: skip
    assert answer.status_code == 400
