"""The same conversations through several routers: who talks, and what is made of it."""

from __future__ import annotations

import argparse
import json

import pytest

from bench import conversations
from bench.talks.beside import WITH_KEYS, WITHOUT_KEYS
from bench.talks.figures import computed, max_mean_over_time, seen, table, troubles
from bench.talks.people import Crowd, Heard, hold
from routing_agent.engine.base import EngineLoad
from routing_agent.simulation.profiles import A100_QWEN_7B
from routing_agent.simulation.requests import Limits
from routing_agent.simulation.server import EngineServer

CROWD = Crowd(conversations=4, per_second=500.0, turns=2.0, pause_s=0.001, answer_tokens=3)


def load(prompt: float, cached: float) -> EngineLoad:
    return EngineLoad(prompt_tokens_total=prompt, cached_prompt_tokens_total=cached)


def test_the_same_seed_is_the_same_conversations_and_another_is_not():
    talks = CROWD.talks()
    assert talks == CROWD.talks()
    assert talks != Crowd(conversations=4, per_second=500.0, turns=2.0, seed=2).talks()
    assert len({talk.address for talk in Crowd(conversations=600).talks()}) == 600
    assert all(len(talk.turns) == len(talk.pauses_s) >= 1 for talk in talks)


async def test_people_hold_their_conversations_to_the_end_and_what_fails_is_counted():
    limits = Limits(model="m", longest_request_tokens=32_768, answer_tokens=3, max_adapter_rank=64)
    server = EngineServer(A100_QWEN_7B.faster(50), limits)
    await server.start("127.0.0.1", 0)
    heard = Heard()
    talks = CROWD.talks()
    try:
        for talk in talks:
            await hold(talk, server.port, heard, answer_tokens=3, has_key=True)
    finally:
        await server.stop(1.0)
    assert heard.requests == len(heard.ttfts_s) == sum(len(talk.turns) for talk in talks)
    assert not heard.problems
    await hold(talks[0], server.port, heard, answer_tokens=3, has_key=False)
    assert heard.problems == {"ConnectionRefusedError": 1}
    assert troubles([{"router": "r", **seen(heard)}]) == ["r: ConnectionRefusedError: 1 x"]


def test_hits_and_work_are_what_the_engines_counted_since():
    row = computed([load(100, 50), load(0, 0)], [load(300, 150), load(200, 100)])
    assert row == {"prompt_tokens": 400, "hit_rate": 0.5, "work_max_mean": 1.0}
    assert computed([load(0, 0)], [load(0, 0)])["hit_rate"] is None
    assert max_mean_over_time([[4, 0], [1, 1], [0, 0]]) == pytest.approx((8 + 2) / 6)
    assert max_mean_over_time([[0, 0]]) is None


def test_medians_of_the_runs_kept_in_a_file_are_shown_best_first(tmp_path, capsys):
    def row(router, mean, keys=True):
        return {"router": router, "keys": keys, "ttft_mean_ms": mean, "problems": {"cut": 1},
                "hit_rate": 0.5}  # fmt: skip

    rows = [row("slow", 300), row("quick", 90), row("quick", 110), row("quick", 100)]
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(json.dumps(one) for one in [*rows, row("no keys", 1, keys=False)]))
    parser = argparse.ArgumentParser()
    conversations.add_arguments(parser)
    assert conversations.main(parser.parse_args(["--show", str(file)])) == 0
    told = capsys.readouterr().out
    assert "| quick | 3 | 50.0 % | 100 (90 to 110) | no figure" in told
    assert told.index("quick") < told.index("slow")
    assert "no keys" not in told
    assert "NOT CLEAN: slow: cut: 1 x" in told
    assert table([]).count("\n") == 1


def test_with_and_without_keys_others_are_asked_by_what_their_users_would_have():
    assert [peer.name for peer in WITH_KEYS][-1] == "nginx hash of session"
    assert {"nginx hash of address", "nginx least_conn"} <= {peer.name for peer in WITHOUT_KEYS}
