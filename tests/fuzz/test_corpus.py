"""The kept inputs, and the same promises under Hypothesis."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(path for path in CORPUS.glob("*/*") if path.is_file())

# Pieces of what each target reads: random bytes alone would be refused at the first of them.
PIECES: dict[str, tuple[bytes, ...]] = {
    "request_body": (
        b'{"model":"m"',
        b',"messages":[',
        b'{"role":"user","content":"x"}',
        b"]",
        b"}",
        b',"stream_options":{',
        b'"include_usage":true',
        b',"mod\\u0065l":"n"',
        b',"a":"\\"model\\""',
        b',"seed":9007199254740993',
        b',"t":0.10',
        b"[",
        b'"',
        b",",
        b"null",
    ),
    "events": (
        b"data:",
        b" ",
        b"\n",
        b"\r\n",
        b"\r",
        b"event: error",
        b": ping",
        b"[DONE]",
        b'{"choices":[',
        b'{"index":0,"delta":{"content":"x"}}',
        b"]}",
        b',"usage":{"prompt_tokens":1}',
        b'{"error":1}',
        b'"finish_reason":"stop"',
    ),
    "client_http": (
        b"POST /v1/chat/completions HTTP/1.1\r\n",
        b"GET /v1/models HTTP/1.1\r\n",
        b"host: x\r\n",
        b"content-type: application/json\r\n",
        b"content-length: 2\r\n",
        b"transfer-encoding: chunked\r\n",
        b"expect: 100-continue\r\n",
        b"\r\n",
        b"{}",
        b"2\r\n{}\r\n0\r\n\r\n",
        b"upgrade: h2c\r\n",
        b"connection: close\r\n",
        b'{"model":"m","messages":[{}]}',
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ),
    "engine_http": (
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 503 X\r\n",
        b"content-type: text/event-stream\r\n",
        b"content-length: 5\r\n",
        b"connection: close\r\n",
        b"transfer-encoding: chunked\r\n",
        b"\r\n",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"data: [DONE]\n\n",
        b"retry-after: 1\r\n",
        b"x-signalbox-a: b\r\n",
    ),
    "metrics_page": (
        b"vllm:num_requests_running",
        b"{",
        b"}",
        b'model_name="m"',
        b" ",
        b"1.0",
        b"NaN",
        b"-1",
        b"\n",
        b"vllm:kv_cache_usage_perc",
        b"vllm:cache_config_info",
        b'block_size="16"',
        b"+Inf",
        b"1e309",
        b"sglang:token_usage",
        b"vllm:lora_requests_info",
    ),
    "path": (
        b"/v1/chat/completions",
        b"/",
        b"?",
        b"%2f",
        b"..",
        b"load_lora_adapter",
        b"%2e",
        b"\\",
    ),
    "table": (
        b'{"kind":"routing-table","lineage":"l","epoch":1,"fleet_revision":0',
        b',"pools":[',
        b"]",
        b"}",
        b'{"name":"p","model":"m","version":"1","overload":"queue","endpoints":[',
        b",",
        b'{"replica":"r","url":"http://a:1"}',
        b',"settings":{"extra_paths":["/x"]}',
        b"null",
        b'"',
    ),
}


@pytest.mark.parametrize("path", KEPT, ids=[f"{p.parent.name}/{p.name}" for p in KEPT])
def test_what_was_found_once_stays_found(path: Path) -> None:
    """Each kept input, among them every one that broke something."""
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_promise_holds_for_pieces_in_any_order(name: str) -> None:
    """Hypothesis puts together what looks like the real thing."""
    pieces = st.lists(st.sampled_from(PIECES[name]) | st.binary(max_size=6), max_size=24)

    @settings(deadline=None)  # others work on this machine too
    @given(pieces.map(b"".join))
    def holds(data: bytes) -> None:
        TARGETS[name](data)

    holds()


def test_every_target_has_a_kept_input() -> None:
    """A target without seeds finds nothing in minutes."""
    assert {path.parent.name for path in KEPT} == set(TARGETS)
