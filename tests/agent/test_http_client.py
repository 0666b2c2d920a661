"""The agent's own HTTP client against servers that behave and servers that do not."""

from __future__ import annotations

import asyncio

import pytest

from routing_agent.control.http_server import Answer, HttpServer
from routing_agent.http_client import CallFailed, ConnectionRefused, HttpClient, split_url


class RawServer:
    """Says prepared bytes to each connection in turn; counts connections."""

    def __init__(self, *says: bytes, keeps_open: bool = False) -> None:
        self.says = list(says)
        self.connections = 0
        self.heard: list[bytes] = []
        self._keeps_open = keeps_open

    async def __aenter__(self) -> RawServer:
        self._stop = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        self._stop.set()
        self._server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        self.heard.append(await reader.readuntil(b"\r\n\r\n"))
        if self.says:
            writer.write(self.says.pop(0))
        if self._keeps_open:
            await self._stop.wait()
        writer.close()


@pytest.fixture
async def client():
    client = HttpClient()
    yield client
    await client.close()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def test_a_plain_answer(client):
    async with RawServer(OK) as server:
        response = await client.call("GET", server.url + "/health?x=1")
    assert (response.status, response.ok, response.body) == (200, True, b"ok")
    assert server.heard[0].startswith(b"GET /health?x=1 HTTP/1.1\r\nhost: 127.0.0.1:")


async def test_a_body_and_headers_are_sent(client):
    seen = []

    async def handle(request):
        seen.append(request)
        return Answer(201, b"{}")

    server = HttpServer(handle)
    port = await server.start("127.0.0.1", 0)
    response = await client.call(
        "POST", f"http://127.0.0.1:{port}/a", body=b"x" * 300_000, headers={"x-key": "v"}
    )
    await server.close()
    assert response.status == 201
    assert (seen[0].body, seen[0].headers["x-key"]) == (b"x" * 300_000, "v")


async def test_the_connection_is_used_again(client):
    connections = []

    async def handle(request):
        connections.append(request.peer)
        return Answer(200)

    server = HttpServer(handle)
    port = await server.start("127.0.0.1", 0)
    for _ in range(3):
        await client.call("GET", f"http://127.0.0.1:{port}/")
    assert len(server._connections) == 1
    await server.close()
    assert len(connections) == 3


@pytest.mark.parametrize(
    ("says", "kept"),
    [
        (OK, 1),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 0),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 0),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 1),
    ],
    ids=["kept", "close", "old", "chunks"],
)
async def test_the_connection_is_kept_exactly_when_the_answer_allows_it(client, says, kept):
    async with RawServer(says, keeps_open=True) as server:
        await client.call("GET", server.url)
        assert sum(len(connections) for connections in client._idle.values()) == kept


async def test_a_kept_connection_that_the_server_closed_is_no_failure(client):
    async with RawServer(OK, OK) as server:
        await client.call("GET", server.url)
        assert (await client.call("GET", server.url)).status == 200
    assert server.connections == 2


async def test_connections_to_addresses_that_nobody_calls_any_more_are_closed(client, monkeypatch):
    async with RawServer(OK, keeps_open=True) as gone, RawServer(OK) as other:
        await client.call("GET", gone.url)
        [[kept]] = client._idle.values()
        monkeypatch.setattr("routing_agent.http_client.IDLE_LIMIT_S", 0.0)
        await client.call("GET", other.url)
        assert kept.transport.is_closing()
        assert split_url(gone.url)[0] not in client._idle


async def test_chunks_and_an_answer_that_ends_with_the_connection(client):
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
    until_close = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\nabc"
    async with RawServer(chunked, until_close) as server:
        assert (await client.call("GET", server.url)).body == b"abc"
        assert (await client.call("GET", server.url)).body == b"abc"


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"", "without an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", "in the middle"),
        (b"SSH-2.0-OpenSSH_9\r\n", "not HTTP"),
    ],
    ids=["nothing", "half", "another-protocol"],
)
async def test_a_broken_answer_says_how_it_is_broken(client, says, why):
    async with RawServer(says) as server:
        with pytest.raises(CallFailed, match=why):
            await client.call("GET", server.url)


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"])
async def test_a_server_that_stalls_costs_no_more_than_the_deadline(client, says):
    async with RawServer(says, keeps_open=True) as server:
        with pytest.raises(CallFailed, match=r"no answer from 127.0.0.1:\d+ within 0.05 s"):
            await client.call("GET", server.url, timeout_s=0.05)


@pytest.mark.parametrize(
    "says",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    ],
)
async def test_a_download_is_handed_on_piece_by_piece(client, says):
    taken, answer = await downloaded(client, says)
    assert (taken, answer.status, answer.body) == (b"hello", 200, b"")


async def test_a_download_that_is_refused_hands_on_nothing(client):
    says = b"HTTP/1.1 404 X\r\ncontent-length: 4\r\n\r\ngone"
    taken, answer = await downloaded(client, says)
    assert (taken, answer.status, answer.body) == (b"", 404, b"gone")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", "broke off"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n" + b"x" * 99, "larger than 10"),
        (b"nonsense", "not HTTP"),
    ],
)
async def test_a_download_that_breaks_says_how(client, says, why):
    with pytest.raises(CallFailed, match=why):
        await downloaded(client, says)


async def downloaded(client, says):
    pieces = []

    async def take(piece):
        pieces.append(piece)

    async with RawServer(says) as server:
        answer = await client.download(
            server.url, headers={}, take=take, limit_bytes=10, stall_s=5.0
        )
    return b"".join(pieces), answer


async def test_nobody_listening_is_told_apart(client, unused_tcp_port):
    with pytest.raises(ConnectionRefused, match="connection refused"):
        await client.call("GET", f"http://127.0.0.1:{unused_tcp_port}")


async def test_a_huge_answer_is_cut_off(client, monkeypatch):
    monkeypatch.setattr("routing_agent.http_client.BODY_LIMIT_BYTES", 10)
    async with RawServer(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n01234567890") as server:
        with pytest.raises(CallFailed, match="larger than 10 bytes"):
            await client.call("GET", server.url)


async def test_an_unknown_host_is_a_failure_in_words(client):
    with pytest.raises(CallFailed, match="cannot talk to"):
        await client.call("GET", "http://no-such-host.invalid:1/")


async def test_ipv6_addresses_work(client):
    async def handle(request):
        return Answer(200, request.headers["host"].encode())

    server = HttpServer(handle)
    port = await server.start("::1", 0)
    response = await client.call("GET", f"http://[::1]:{port}/")
    await server.close()
    assert response.body == f"[::1]:{port}".encode()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://::1:9001", "in brackets"),
        ("http://host:port", "in brackets"),
        ("ftp://host", "not an http"),
        ("host:80", "not an http"),
        ("http://", "not an http"),
    ],
)
def test_a_malformed_address_says_what_is_wrong(url, why):
    with pytest.raises(ValueError, match=why):
        split_url(url)


def test_default_ports():
    assert split_url("https://a.example/x")[0].port == 443
    assert split_url("http://a.example")[1] == "/"
