"""Trace formats: what is read, what is made of it, and what a bad line is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.simulation.traces.model import Trace, TraceError, TraceRequest
from routing_agent.simulation.traces.reading import read_trace

SHARED = Path(__file__).parents[4] / "shared" / "traces"
needs_shared = pytest.mark.skipif(
    not SHARED.exists(), reason="no sample data beside the checkout (../shared)"
)


def mooncake_line(at_ms: int = 0, prompt: int = 1000, ids: Sequence[int] = (0, 1)) -> str:
    row = {"timestamp": at_ms, "input_length": prompt, "output_length": 5, "hash_ids": list(ids)}
    return json.dumps(row)


def session_file(folder: Path, number: int, *turns: tuple[float, int, list[int]]) -> None:
    requests = [{"t": t, "type": "s", "in": n, "out": 7, "hash_ids": ids} for t, n, ids in turns]
    session = {
        "id": f"trace_{number:04}",
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": requests,
    }
    (folder / f"trace_{number:04}.json").write_text(json.dumps(session))


def test_a_mooncake_trace_is_read_in_order_of_time(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text(mooncake_line(2500) + "\n\n" + mooncake_line(500, 512, [0]) + "\n")
    trace = read_trace(file)
    assert [(r.at_s, r.prompt_tokens, r.blocks) for r in trace.requests] == [
        (0.5, 512, (0,)),
        (2.5, 1000, (0, 1)),
    ]
    assert trace.block_tokens == 512


def test_requests_with_the_same_first_two_blocks_are_one_session(tmp_path):
    file = tmp_path / "t.jsonl"
    ids = ([0, 1, 2], [0, 1, 3], [0, 4, 5])
    file.write_text("\n".join(mooncake_line(0, 1500, one) for one in ids))
    first, second, third = read_trace(file).requests
    assert first.session == second.session != third.session


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"timestamp": 1', "line 3: Input data was truncated"),
        ('{"timestamp": 1, "input_length": 3}', "line 3: Object missing required field"),
        (mooncake_line(prompt=0, ids=[]), r"line 3: Expected `int` >= 1 - at `\$.input_length`"),
        (mooncake_line(prompt=1025), "line 3: 2 hash_ids for an input_length of 1025; .* 3"),
        ("\\xff\\xfe", "line 3: "),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, bad, told):
    file = tmp_path / "t.jsonl"
    file.write_text(f"{mooncake_line()}\n{mooncake_line()}\n{bad}\n")
    with pytest.raises(TraceError, match=told):
        read_trace(file)


def azure(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "t.csv"
    file.write_text("\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\r\n")
    return file


def test_an_azure_trace_begins_with_its_first_arrival(tmp_path):
    rows = ("2024-02-29 23:59:59.9000000,374,44", "2024-03-01 00:00:01.1500001,396,0")
    trace = read_trace(azure(tmp_path, *rows))
    assert [r.at_s for r in trace.requests] == pytest.approx([0.0, 1.2500001])
    assert [(r.prompt_tokens, r.output_tokens) for r in trace.requests] == [(374, 44), (396, 0)]
    assert "every prompt counts as new" in trace.note
    assert len({r.session for r in trace.requests}) == 2


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("yesterday,1,1", "line 3: TIMESTAMP is 'yesterday'"),
        ("2024-02-30 00:00:00.0,1,1", "line 3: TIMESTAMP is"),
        ("2024-02-29 00:00:00.0,0,1", "line 3: ContextTokens is '0'; a whole number from 1"),
        ("2024-02-29 00:00:00.0,1,-1", "line 3: GeneratedTokens is '-1'"),
        ("2024-02-29 00:00:00.0,1", "line 3: 2 columns, 3 expected"),
    ],
)
def test_a_bad_azure_line_is_named_with_its_number(tmp_path, bad, told):
    with pytest.raises(TraceError, match=told):
        read_trace(azure(tmp_path, "2024-02-29 00:00:00.0,1,1", bad))


def test_a_csv_of_something_else_is_no_azure_trace(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="line 1: the columns must be TIMESTAMP,ContextTokens"):
        read_trace(file)


def test_block_ids_of_different_sessions_are_different_blocks(tmp_path):
    for number in (1, 2):
        session_file(tmp_path, number, (0.0, 128, [1, 2]), (9.0, 200, [1, 2, 3]))
    trace = read_trace(tmp_path)
    by_session = {}
    for one in trace.requests:
        by_session.setdefault(one.session, set()).update(one.blocks)
    first, second = by_session.values()
    assert len(first) == len(second) == 3
    assert not first & second


def test_sessions_begin_by_chance_but_the_same_for_the_same_seed(tmp_path):
    for number in range(5):
        session_file(tmp_path, number, (0.0, 64, [1]))
    begins = [[r.at_s for r in read_trace(tmp_path, seed=s).requests] for s in (1, 1, 2)]
    assert begins[0] == begins[1] != begins[2]


def test_a_bad_turn_of_a_session_is_named_with_its_place(tmp_path):
    session_file(tmp_path, 7, (0.0, 64, [1]), (1.0, 129, [1]))
    with pytest.raises(TraceError, match=r"trace_0007.json requests\[1\]: 1 hash_ids for 129"):
        read_trace(tmp_path)
    (tmp_path / "trace_0007.json").write_text('{"id": "x"}')
    with pytest.raises(TraceError, match="missing required field `block_size`"):
        read_trace(tmp_path)


def servegen(folder: Path, rate: float, lengths: str = "{100: 0.5, 300: 0.5}") -> Path:
    for client, pattern in enumerate(("Gamma", "Weibull", "")):
        rows = [f"0,{rate},1.5,{pattern},0.7,3.0", "600,0,0,,0,0", f"1200,{rate},1,{pattern},0.7,3"]
        (folder / f"chunk-{client}-trace.csv").write_text("\n".join(rows) + "\n")
    windows = {"0": {"input_tokens": lengths, "output_tokens": "{7: 1.0}"}}
    (folder / "chunk-1-dataset.json").write_text(json.dumps(windows))
    return folder


def test_servegen_requests_come_at_the_rate_of_each_window(tmp_path):
    trace = read_trace(servegen(tmp_path, rate=5.0), seed=3)
    counts = [
        sum(start <= r.at_s < start + 600 for r in trace.requests) for start in (0, 600, 1200)
    ]
    assert counts[1] == 0
    assert counts[0] == pytest.approx(9000, rel=0.05)
    assert counts[2] == pytest.approx(9000, rel=0.05)
    assert [r.at_s for r in trace.requests] == sorted(r.at_s for r in trace.requests)
    long = sum(r.prompt_tokens == 300 for r in trace.requests) / len(trace.requests)
    assert long == pytest.approx(0.5, abs=0.03)
    assert {r.output_tokens for r in trace.requests} == {7}


def test_servegen_draws_no_more_than_asked_for(tmp_path):
    trace = read_trace(servegen(tmp_path, rate=5.0), limit=10)
    assert len(trace.requests) == 10
    assert trace == read_trace(tmp_path, limit=10)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("chunk-0-trace.csv", "0,1,1,Gamma,1,1\n600,x,1,Gamma,1,1", "line 2: could not convert"),
        ("chunk-0-trace.csv", "0,1,1,Poisson,1,1", "line 1: the pattern is 'Poisson'"),
        ("chunk-0-trace.csv", "0,1,1,Gamma,0,1", "line 1: rate 1 and shape 0 make no sense"),
        ("chunk-0-trace.csv", "0,1,1,Gamma", "line 1: 4 columns, 6 expected"),
        ("chunk-0-trace.csv", "0,1,1,,0,0\n60,1,1,,0,0", "line 2: begins at 60.0, too early"),
        ("chunk-1-dataset.json", '{"0": {"input_tokens": "{1: 1}"}}', "has no 'output_tokens'"),
        (
            "chunk-1-dataset.json",
            '{"0": {"input_tokens": "exit()", "output_tokens": "{1: 1}"}}',
            "chunk-1-dataset.json: malformed node",
        ),
    ],
)
def test_a_bad_servegen_file_is_named(tmp_path, file, text, told):
    servegen(tmp_path, rate=1.0)
    (tmp_path / file).write_text(text)
    with pytest.raises(TraceError, match=told):
        read_trace(tmp_path)


def test_what_is_no_trace_is_told_what_would_be(tmp_path):
    with pytest.raises(TraceError, match="there is no such file or folder"):
        read_trace(tmp_path / "gone.jsonl")
    with pytest.raises(TraceError, match=r"not known what this is. Mooncake is a .jsonl file"):
        read_trace(tmp_path)
    (tmp_path / "t.jsonl").write_text("\n")
    with pytest.raises(TraceError, match="there is no request in it"):
        read_trace(tmp_path / "t.jsonl")


def made(*requests: TraceRequest, block_tokens: int | None = 64) -> Trace:
    return Trace(name="made", requests=requests, block_tokens=block_tokens)


def one(at_s: float = 0.0, prompt: int = 256, blocks: Sequence[int] = ()) -> TraceRequest:
    return TraceRequest(
        at_s=at_s, prompt_tokens=prompt, output_tokens=1, session=0, blocks=tuple(blocks)
    )


def test_time_is_squeezed_to_the_wanted_utilisation():
    trace = made(one(0.0), one(5.0), one(10.0, 488)).with_utilisation(0.5, 100.0)
    assert [r.at_s for r in trace.requests] == pytest.approx([0.0, 10.0, 20.0])
    assert trace.prompt_tokens / trace.duration_s / 100.0 == pytest.approx(0.5)


def test_blocks_that_do_not_fit_each_other_are_refused():
    with pytest.raises(TraceError, match="its blocks have 64 tokens; blocks of 100"):
        made(one()).with_block_tokens(100)


prefixes = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(prefixes, prefixes, st.sampled_from([16, 32, 64, 128, 256]), st.integers(0, 63))
def test_regrouped_blocks_share_exactly_the_full_blocks_of_the_shared_prefix(
    left, right, size, rest
):
    """Two prompts share `n` chained blocks of 64: in another size, what fits into those tokens."""

    def chained(path: list[int]) -> list[int]:
        return [hash(tuple(path[: i + 1])) & 0xFFFFFF for i in range(len(path))]

    a, b = chained(left), chained(right)
    shared = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    shared = min(len(a), len(b)) if shared is None else shared
    requests = (one(0.0, len(a) * 64 + rest, a), one(1.0, len(b) * 64 + rest, b))
    first, second = made(*requests).with_block_tokens(size).requests
    assert len(first.blocks) == len(a) * 64 // size  # of what has ids: no partial block
    same = next(
        (i for i, (x, y) in enumerate(zip(first.blocks, second.blocks, strict=False)) if x != y),
        min(len(first.blocks), len(second.blocks)),
    )
    assert same == shared * 64 // size


@pytest.mark.shared
@needs_shared
@pytest.mark.parametrize(
    ("name", "requests", "prompt", "output", "ideal_hit"),
    [
        ("mooncake/conversation_trace.jsonl", 7851, 12_428, 347, 0.358),
        ("mooncake/synthetic_trace.jsonl", 2597, 13_191, 184, 0.437),
        ("azure2023/AzureLLMInferenceTrace_code.csv", 7491, 2040, 28, None),
        ("azure2023/AzureLLMInferenceTrace_conv.csv", 14_176, 1195, 202, None),
        ("agentic_claude_code", 1711, 100_758, 426, 0.934),
    ],
)
def test_the_real_traces_read_as_published(name, requests, prompt, output, ideal_hit):
    trace = read_trace(SHARED / name)
    assert len(trace.requests) == requests
    assert trace.prompt_tokens / requests == pytest.approx(prompt, abs=1)
    assert sum(r.output_tokens for r in trace.requests) / requests == pytest.approx(output, abs=1)
    if ideal_hit is None:
        return
    seen: set[int] = set()
    hit = 0
    for request in trace.requests:
        known = next((i for i, b in enumerate(request.blocks) if b not in seen), None)
        count = len(request.blocks) if known is None else known
        hit += min(count * (trace.block_tokens or 0), request.prompt_tokens)
        seen.update(request.blocks)
    assert hit / trace.prompt_tokens == pytest.approx(ideal_hit, abs=0.001)


@pytest.mark.shared
@needs_shared
def test_a_real_servegen_folder_draws_its_published_rate():
    trace = read_trace(SHARED / "servegen" / "reason-deepseek-r1", limit=9000)
    assert trace.duration_s == pytest.approx(9000 / 15.0, rel=0.7)  # 4.3 to 33.3 requests/s
