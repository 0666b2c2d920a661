"""HTTP as clients really speak it, and requests in every odd shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from routing_agent import wire
from tests.agent.proxy.client import RawClient, ask, chat, get
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import completion, hanging, obliging

BODY = json.dumps(chat()).encode()


def raw_post(*lines: str, body: bytes = b"", path: str = "/v1/chat/completions") -> bytes:
    head = "\r\n".join([f"POST {path} HTTP/1.1", "host: p", "content-type: application/json"])
    return (head + "".join(f"\r\n{line}" for line in lines) + "\r\n\r\n").encode() + body


async def exchange_raw(rig: Rig, data: bytes) -> Any:
    client = await RawClient.open(rig.port)
    client.write(data)
    return await client.reply()


async def test_a_chunked_upload_reaches_the_engine_under_one_framing(rig: Rig) -> None:
    """R19 (a)."""
    await rig.start()
    cut = len(BODY) // 2
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (BODY[:cut], BODY[cut:]))
    data = raw_post("transfer-encoding: chunked", body=chunks + b"0\r\n\r\n")
    assert (await exchange_raw(rig, data)).status == 200
    call = rig.engines[0].calls[0]
    assert call.body == BODY
    assert call.header("transfer-encoding") is None


async def test_expect_continue_is_answered(rig: Rig) -> None:
    """R19 (b): a 2 MB body that waits for the word."""
    await rig.start()
    body = json.dumps(chat(messages=[{"role": "user", "content": "x" * 2_000_000}])).encode()
    client = await RawClient.open(rig.port)
    client.write(raw_post(f"content-length: {len(body)}", "expect: 100-continue"))
    assert (await client.head())[0] == 100
    client.write(body)
    assert (await client.reply()).status == 200
    assert rig.engines[0].calls[0].body == body


async def test_two_framings_are_refused(rig: Rig) -> None:
    """R19 (c): never two requests at the engine."""
    await rig.start()
    for lines in (
        ("content-length: 5", "transfer-encoding: chunked"),
        ("transfer-encoding: chunked", "content-length: 5"),
        ("content-length: 5", "content-length: 6"),
    ):
        data = raw_post(*lines, body=b"0\r\n\r\n" + raw_post(f"content-length: {len(BODY)}") + BODY)
        reply = await exchange_raw(rig, data)
        assert (reply.status, reply.error["code"]) == (400, "malformed_http")
        assert reply.headers["connection"] == "close"
    assert rig.calls == [0]


async def test_an_unknown_transfer_encoding_is_refused(rig: Rig) -> None:
    """R19: only `chunked` is understood."""
    await rig.start()
    reply = await exchange_raw(rig, raw_post("transfer-encoding: gzip, chunked", body=b"0\r\n\r\n"))
    assert reply.status == 501


async def test_a_rewritten_body_keeps_every_other_byte(rig: Rig) -> None:
    """R20: alias to served model, with emoji, an unknown field and a big integer."""
    await rig.start()
    rig.configure(
        table={
            "models": (
                wire.ModelRoute(model="m", aliases=("chat",), split=(wire.WeightedPool(pool="p"),)),
            )
        }
    )
    rig.set_endpoints(rig.endpoint(0, served_model="模型-二"))
    body = (
        '{ "temperature": 0.10, "model" : "chat", "seed": 9007199254740993,'
        ' "unknown":{"model":"chat"},"messages":[{"role":"user","content":"🙂 \\u00e9"}] }'
    ).encode()
    reply = await rig.ask(body)
    assert reply.json() == completion("one two three")
    seen = rig.engines[0].calls[0]
    assert seen.body == body.replace(b'"model" : "chat"', '"model" : "模型-二"'.encode())
    assert len(seen.body) == int(seen.header("content-length") or 0)


async def test_headers_of_clients_and_hops_stay_behind(rig: Rig) -> None:
    """R21: no key, cookie, hop-by-hop or forged header reaches the engine."""
    await rig.start()
    rig.set_endpoints(rig.endpoint(0, credential="engine-secret"))
    reply = await rig.ask(
        chat(),
        authorization="Bearer tenant-secret",
        x_api_key="tenant-secret",
        proxy_authorization="Basic x",
        cookie="a=b",
        connection="X-Hop, keep-alive",
        x_hop="1",
        te="trailers",
        x_forwarded_for="6.6.6.6",
        x_signalbox_tenant="root",
        x_signalbox_route="only",
        x_signalbox_epoch="99",
        user_agent="test/1",
    )
    assert reply.status == 200
    raw = rig.engines[0].calls[0].raw.lower()
    for word in (b"tenant-secret", b"proxy-auth", b"cookie", b"x-hop", b"6.6.6.6", b"signalbox"):
        assert word not in raw
    call = rig.engines[0].calls[0]
    assert call.header("authorization") == "Bearer engine-secret"
    assert call.header("connection") is None
    assert call.header("user-agent") == "test/1"
    assert "engine-secret" not in str(reply.headers)


async def test_an_engines_own_headers_are_filtered(rig: Rig) -> None:
    """R21: cookies, hops and forged route headers of an engine stay behind, its own ids pass."""

    async def script(call: Any) -> None:
        await call.answer(
            200,
            completion(),
            "set-cookie: a=b",
            "keep-alive: timeout=5",
            "x-signalbox-replica: forged",
            "x-request-id: other",
            "x-ratelimit-remaining: 5",
        )

    await rig.start(script)
    headers = (await rig.ask(chat(), x_request_id="mine")).headers
    assert "set-cookie" not in headers
    assert "keep-alive" not in headers
    assert headers["x-signalbox-replica"] == "r0"
    assert headers["x-request-id"] == "mine"
    assert headers["x-ratelimit-remaining"] == "5"


async def test_request_id_and_trace_context_travel(rig: Rig) -> None:
    """Given ones are forwarded, missing or broken ones made."""
    await rig.start()
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await rig.ask(chat(), x_request_id="abc", traceparent=trace)
    reply = await rig.ask(chat(), x_request_id="a b\tc", traceparent="00-zz")
    first, second = rig.engines[0].calls
    assert first.header("x-request-id") == "abc"
    version, trace_id, parent, flags = (first.header("traceparent") or "").split("-")
    assert (version, trace_id, flags) == ("00", "4bf92f3577b34da6a3ce929d0e0e4736", "01")
    assert parent != "00f067aa0ba902b7"  # our own span is between
    assert second.header("x-request-id") == reply.headers["x-request-id"] != "a b\tc"
    made = second.header("traceparent") or ""
    assert len(made) == 55
    assert made[3:35] != trace[3:35]


MODEL = "org/m-7b:canary"


async def test_model_ids_work_raw_and_encoded(rig: Rig) -> None:
    """R22: an id from the list can be fetched back."""
    await rig.start()
    route = wire.ModelRoute(
        model=MODEL, aliases=("chat",), split=(wire.WeightedPool(pool="p"),), context_tokens=2048
    )
    rig.apply(models=(route,))
    listed = (await get(rig.port, "/v1/models")).json()
    assert [entry["id"] for entry in listed["data"]] == ["chat", MODEL]
    for path in (f"/v1/models/{MODEL}", "/v1/models/org%2Fm-7b%3Acanary"):
        reply = await get(rig.port, path)
        assert (reply.json()["id"], reply.json()["max_model_len"]) == (MODEL, 2048)
    assert (await rig.ask(chat(model=MODEL))).status == 200
    assert rig.engines[0].calls[0].json()["model"] == "m"
    for path in ("/v1/models/nope", "/v1/models/", "/v1/models/%FF"):
        reply = await get(rig.port, path)
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_models_are_those_the_key_may_call(rig: Rig) -> None:
    """R22: a tenant sees its own models only."""
    await rig.start()
    split = (wire.WeightedPool(pool="p"),)
    rig.apply(
        models=(wire.ModelRoute(model="m", split=split), wire.ModelRoute(model="n", split=split)),
        tenants=(wire.Tenant(name="local", models=("n",)),),
    )
    assert [e["id"] for e in (await get(rig.port, "/v1/models")).json()["data"]] == ["n"]
    assert (await get(rig.port, "/v1/models/m")).status == 404


async def test_methods_and_path_variants(rig: Rig) -> None:
    """R23: preflights need no key, wrong methods say which are right, variants are 404."""
    await rig.start()
    rig.configure(table={"open_access": False})
    reply = await get(rig.port, "/v1/chat/completions", method="OPTIONS", origin="http://x")
    assert reply.status == 204
    whole = await get(rig.port, "/healthz")
    head = await get(rig.port, "/healthz", method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers == whole.headers
    for path in ("/v1/chat/completions/", "//v1/chat/completions", "/V1/chat/completions"):
        assert (await rig.ask(chat(), path=path)).status == 404
    reply = await get(rig.port, "/v1/chat/completions")
    assert (reply.status, reply.headers["allow"]) == (405, "POST, OPTIONS")
    assert reply.error["code"] == "method_not_allowed"
    assert (await rig.ask(b"{}", path="/healthz")).status == 405
    assert rig.calls == [0]
    assert rig.records == []


async def test_bodies_up_to_the_limit_pass_and_larger_ones_do_not(rig: Rig) -> None:
    """R24: 8 MB is forwarded; one byte above the limit is 413, ten times as well."""
    await rig.start()
    rig.configure(body_limit_bytes=9_000_000)

    def sized(size: int) -> bytes:
        empty = json.dumps(chat(messages=[{"role": "user", "content": ""}])).encode()
        return empty.replace(b'""', b'"' + b"x" * (size - len(empty)) + b'"')

    for size in (1_100_000, 8_000_000, 9_000_000):
        assert (await rig.ask(sized(size))).status == 200
        assert rig.engines[0].calls[-1].body == sized(size)
    reply = await rig.ask(sized(9_000_001))
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    client = await RawClient.open(rig.port)
    client.write(raw_post("content-length: 90000000", body=b"{" + b" " * 100_000))
    assert (await client.reply()).status == 413
    client = await RawClient.open(rig.port)
    client.write(raw_post("transfer-encoding: chunked", body=b"989680\r\n" + b"x" * 10_000_000))
    assert (await client.reply()).status == 413
    assert len(rig.engines[0].calls) == 3


async def test_the_limit_of_the_requests_own_pool_counts(rig: Rig) -> None:
    """R24: another pool's larger limit does not help."""
    await rig.start()
    rig.configure(body_limit_bytes=2048)
    small = rig.table.pools[0]
    other = wire.Pool(name="q", model="n", version="1", overload="reject")
    rig.apply(pools=(small, other))
    assert (await rig.ask(chat(x="y" * 4000))).status == 413


BAD_BODIES = {
    "empty": (b"", 400),
    "broken": (b"{bad", 400),
    "list": (b"[]", 400),
    "string": (b'"x"', 400),
    "no fields": (b"{}", 400),
    "null model": (b'{"model":null,"messages":[{}]}', 400),
    "number model": (b'{"model":123,"messages":[{}]}', 400),
    "empty model": (b'{"model":"","messages":[{}]}', 400),
    "long model": (b'{"model":"' + b"x" * 1000 + b'","messages":[{}]}', 400),
    "unknown model": (b'{"model":"nope","messages":[{}]}', 404),
    "no messages": (b'{"model":"m"}', 400),
    "null messages": (b'{"model":"m","messages":null}', 400),
    "number messages": (b'{"model":"m","messages":123}', 400),
    "empty messages": (b'{"model":"m","messages":[]}', 400),
    "null message": (b'{"model":"m","messages":[null]}', 400),
    "number stream": (b'{"model":"m","messages":[{}],"stream":7}', 400),
    "bad utf-8": (b'{"model":"m","messages":[{}],"x":"\xff"}', 400),
    "bad utf-8 content": (b'{"model":"m","messages":[{"content":"\xff"}]}', 400),
    "lone surrogate": (b'{"model":"m","messages":[{"content":"\\ud800"}]}', 400),
    "nan": (b'{"model":"m","messages":[{}],"temperature":NaN}', 400),
    "deep": (b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "deep unknown": (b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
    "bom": (b'\xef\xbb\xbf{"model":"m"}', 400),
}


@pytest.mark.parametrize("name", BAD_BODIES)
async def test_malformed_bodies_are_the_clients_fault(rig: Rig, name: str) -> None:
    """R25: 4xx with a message, never 500, never at an engine."""
    await rig.start()
    body, status = BAD_BODIES[name]
    reply = await rig.ask(body)
    assert reply.status == status
    assert reply.error["message"]
    assert reply.error["type"] == "invalid_request_error"
    assert rig.calls == [0]
    assert rig.replica().errors_total == 0
    assert (await rig.ask(chat())).status == 200


@pytest.mark.parametrize("headers", [{"content_type": "text/plain"}, {"content_encoding": "gzip"}])
async def test_other_content_is_415(rig: Rig, headers: dict[str, str]) -> None:
    """R25: only plain JSON."""
    await rig.start()
    assert (await rig.ask(BODY, **headers)).status == 415


IMAGE = "data:image/png;base64," + "A" * 1_000_000
MESSAGES = [
    {"role": "user", "content": [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": IMAGE}},
    ]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    ]},
    {"role": "tool", "tool_call_id": "1", "content": "42"},
    {"role": "user", "content": ""},
    {"role": "user"},
    {"role": "user", "content": ["odd", "list"]},
]  # fmt: skip


async def test_every_shape_of_content_reaches_the_engine(rig: Rig) -> None:
    """R26: lists, images, null, tools; and an image is not hundreds of thousands of tokens."""
    await rig.start(hanging)
    rig.engines[0].script = obliging()
    for count in range(1, len(MESSAGES) + 1):
        body = chat(messages=MESSAGES[:count])
        assert (await rig.ask(body)).status == 200
        assert rig.engines[0].calls[-1].json() == body
    rig.engines[0].script = hanging
    client = await RawClient.open(rig.port)
    client.post(chat(messages=MESSAGES[:1]))
    await rig.engines[0].called(len(MESSAGES) + 1)
    assert rig.replica().inflight_tokens < 2000
    client.close()


async def test_anthropic_and_odd_types_pass(rig: Rig) -> None:
    """R26: fields that only engines judge are theirs to judge."""
    await rig.start()
    for body in (
        chat(max_tokens="5"),
        chat(user=7, session_id={"a": 1}),
        chat(stream_options="yes"),
        chat(messages=[{"role": "user", "content": {"odd": True}}]),
    ):
        assert (await rig.ask(body)).status == 200
        assert rig.engines[0].calls[-1].json() == body
    anthropic = {"model": "m", "system": "x", "max_tokens": 5, "messages": [
        {"role": "user", "content": [{"type": "image", "source": {"data": "AA"}}]}]}  # fmt: skip
    assert (await rig.ask(anthropic, path="/v1/messages")).status == 200


async def test_ipv6_engines_are_reached(rig: Rig) -> None:
    """R27: an address in brackets."""
    await rig.start()
    try:
        await rig.engines[0].listen("::1")
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    rig.configure()
    assert "[::1]" in rig.engines[0].url
    assert (await rig.ask(chat())).status == 200
    assert rig.engines[0].calls[0].header("host") == f"[::1]:{rig.engines[0].port}"


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    """Several requests in one packet, some local, some refused."""
    await rig.start(obliging(gap_s=0.01))
    client = await RawClient.open(rig.port)
    client.post(chat(stream=True))
    client.write(b"GET /healthz HTTP/1.1\r\nhost: p\r\n\r\n")
    client.post(b"{bad")
    client.post(chat())
    assert (await client.reply()).text == "one two three"
    assert (await client.reply()).json() == {"status": "ok"}
    assert (await client.reply()).status == 400
    assert (await client.reply()).status == 200


async def test_much_pipelined_data_waits_in_the_socket(rig: Rig) -> None:
    """A client that sends on and on while its request runs costs bounded memory."""
    await rig.start(obliging(["x"] * 5, gap_s=0.02))
    client = await RawClient.open(rig.port)
    client.post(chat(stream=True))
    for _ in range(3):
        client.post(chat(pad="x" * 400_000))
    assert (await client.reply()).status == 200
    for _ in range(3):
        assert (await client.reply()).status == 200


async def test_a_connection_is_kept_for_the_next_request(rig: Rig) -> None:
    """Keep-alive on both sides."""
    await rig.start()
    client = await RawClient.open(rig.port)
    for _ in range(5):
        client.post(chat())
        assert (await client.reply()).status == 200
    assert len(rig.engines[0].connections) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_http_1_0_clients_are_served(rig: Rig, stream: bool) -> None:
    """No chunks for a client that does not know them; the end is the connection's."""
    await rig.start()
    body = json.dumps(chat(stream=stream)).encode()
    data = raw_post(f"content-length: {len(body)}", body=body).replace(b"HTTP/1.1", b"HTTP/1.0")
    client = await RawClient.open(rig.port)
    client.write(data)
    reply = await client.reply()
    assert reply.headers["connection"] == "close"
    assert "transfer-encoding" not in reply.headers
    assert b"one" in reply.body
    assert await client.ended()


async def test_connection_close_is_obeyed(rig: Rig) -> None:
    """A client that wants no keep-alive gets none."""
    await rig.start()
    client = await RawClient.open(rig.port)
    client.post(chat(), connection="close")
    assert (await client.reply()).headers["connection"] == "close"
    assert await client.ended()


async def test_too_many_header_bytes_are_431(rig: Rig) -> None:
    """Headers are bounded, complete or not."""
    await rig.start()
    client = await RawClient.open(rig.port)
    client.write(b"GET /healthz HTTP/1.1\r\nhost: p\r\nx: " + b"a" * 200_000)
    assert (await client.reply()).status == 431


@pytest.mark.interpreted
async def test_a_dawdling_head_is_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never finishes its head, or its body, does not hold a connection for ever."""
    monkeypatch.setattr("routing_agent.proxy.ingress.HEAD_LIMIT_S", 0.1)
    monkeypatch.setattr("routing_agent.proxy.ingress.BODY_STALL_S", 0.1)
    await rig.start()
    silent = await RawClient.open(rig.port)
    assert await silent.ended()
    head = await RawClient.open(rig.port)
    head.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
    assert (await head.reply()).status == 408
    body = await RawClient.open(rig.port)
    body.write(raw_post("content-length: 100", body=b"{"))
    assert (await body.reply()).status == 408
    await until(lambda: rig.proxy.open_connections == 0)


async def test_half_closing_counts_as_leaving(rig: Rig) -> None:
    """As with nginx and vLLM: after the client's FIN nobody waits."""
    await rig.start(hanging)
    client = await RawClient.open(rig.port)
    client.post(chat())
    await rig.engines[0].called()
    client.writer.write_eof()
    await until(lambda: rig.records and rig.records[0].status == 499)
    await until(lambda: rig.engines[0].calls[0].peer_closed.is_set())


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nbad header\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_400(rig: Rig, raw: bytes) -> None:
    """TLS on the plain port, HTTP/2, garbage."""
    await rig.start()
    reply = await exchange_raw(rig, raw)
    assert (reply.status, reply.error["code"]) == (400, "malformed_http")


async def test_upgrades_and_tunnels_are_not_spoken(rig: Rig) -> None:
    """CONNECT is refused; an upgrade is ignored and its bytes are never read as a request."""
    await rig.start()
    reply = await exchange_raw(rig, b"CONNECT a:1 HTTP/1.1\r\nhost: p\r\n\r\n")
    assert reply.status in (404, 405)
    data = (
        b"GET /healthz HTTP/1.1\r\nhost: p\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"
        + raw_post(f"content-length: {len(BODY)}", body=BODY)
    )
    client = await RawClient.open(rig.port)
    client.write(data)
    assert (await client.reply()).status == 200
    assert await client.ended()
    assert rig.calls == [0]


MANAGEMENT = (
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/lora-adapters",
    "/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/abort_requests", "/abort_request",
    "/pause_generation", "/continue_generation", "/reset_prefix_cache", "/flush_cache",
    "/server_info", "/get_server_info", "/collective_rpc", "/metrics", "/health", "/slots",
    "/props",
)  # fmt: skip


def spellings(path: str) -> list[str]:
    word = path.lstrip("/")
    return [
        path,
        path.upper(),
        path + "/",
        "//" + word,
        "/./" + word,
        "/v1/../" + word,
        "/v1/chat/completions/.." * 3 + path,
        "/v1/chat/completions/../../.." + path,
        "/%2e/" + word,
        "/" + "".join(f"%{ord(c):02x}" for c in word),
        path.replace("e", "%65"),
        "/v1/chat/completions%2f..%2f..%2f.." + path,
        "/v1/chat/completions;" + path,
        "/v1/chat/completions?x=" + path,
        "http://engine" + path,
        path + "?x=1",
        path + "#x",
        "/v1/models" + path,
        "*",
    ]


@pytest.mark.parametrize("path", MANAGEMENT)
async def test_no_spelling_reaches_an_engines_management(rig: Rig, path: str) -> None:
    """Only the inference paths exist; what the engine sees is our constant, never the client's."""
    await rig.start()
    for spelling in spellings(path):
        for method in ("POST", "GET", "DELETE"):
            client = await RawClient.open(rig.port)
            client.write(
                f"{method} {spelling} HTTP/1.1\r\nhost: p\r\ncontent-type: application/json\r\n"
                f"content-length: {len(BODY)}\r\n\r\n".encode()
                + BODY
            )
            await client.reply()
            client.close()
    assert {call.target for call in rig.engines[0].calls} <= {"/v1/chat/completions"}


async def test_a_pool_may_add_an_inference_path(rig: Rig) -> None:
    """Section 3: by name, and for its own requests only."""
    await rig.start()
    rig.configure(extra_paths=("/v1/audio/transcriptions",))
    reply = await rig.ask({"model": "m"}, path="/v1/audio/transcriptions")
    assert reply.status == 200
    other = wire.Pool(name="q", model="n", version="1", overload="reject")
    rig.apply(
        models=(
            *rig.table.models,
            wire.ModelRoute(model="n", split=(wire.WeightedPool(pool="q"),)),
        ),
        pools=(*rig.table.pools, other),
    )
    reply = await rig.ask({"model": "n"}, path="/v1/audio/transcriptions")
    assert reply.status == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/embeddings", {"input": [1, 2, 3]}),
        ("/v1/responses", {"input": "x", "instructions": "y"}),
        ("/v1/rerank", {"query": "x", "documents": ["a"]}),
        ("/v1/score", {"text_1": "a", "text_2": "b"}),
        ("/tokenize", {"prompt": "x"}),
    ],
)
async def test_every_inference_path_is_forwarded(rig: Rig, path: str, body: dict[str, Any]) -> None:
    """Section 3."""
    await rig.start()
    assert (await rig.ask({"model": "m", **body}, path=path)).status == 200
    assert rig.engines[0].calls[0].target == path


async def test_an_agent_without_a_table_says_so(rig: Rig) -> None:
    """Before the first table: alive, and 503 for traffic."""
    rig.port = await rig.proxy.start("127.0.0.1", 0)
    assert (await get(rig.port, "/healthz")).status == 200
    for reply in (await ask(rig.port, chat()), await get(rig.port, "/v1/models")):
        assert (reply.status, reply.error["code"]) == (503, "no_table")
        assert "retry-after" in reply.headers


async def test_small_requests_pass_beside_large_ones(rig: Rig) -> None:
    """R24: eight megabytes on their way do not hold up the others."""
    await rig.start()
    large = chat(messages=[{"role": "user", "content": "x" * 8_000_000}])
    both = await asyncio.gather(rig.ask(large), *(rig.ask(chat()) for _ in range(10)))
    assert {reply.status for reply in both} == {200}
