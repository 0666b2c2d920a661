"""The admin port's HTTP: odd callers get an answer or nothing, never a crash."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from routing_agent.control import http_server
from routing_agent.control.http_server import Answer, HttpServer, json_answer


async def echo(request):
    if request.path == "/fault":
        raise ZeroDivisionError
    return json_answer(
        {"method": request.method, "target": request.target, "size": len(request.body)}
    )


@pytest.fixture
async def port():
    server = HttpServer(echo)
    yield await server.start("127.0.0.1", 0)
    await server.close()


async def say(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_target_and_body_arrive_whole(port):
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.put(f"http://127.0.0.1:{port}/a/b?c=1", content=b"x" * 200_000)
        again = await client.get(f"http://127.0.0.1:{port}/second")
    assert answer.json() == {"method": "PUT", "target": "/a/b?c=1", "size": 200_000}
    assert again.json()["target"] == "/second"


async def test_a_caller_that_waits_for_permission_to_send_gets_it(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    writer.write(b"abc")
    assert b'"size":3' in await reader.readuntil(b"}")
    writer.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
        (b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 20\r\n\r\n" + b"x" * 20, b"413"),
    ],
    ids=["no-http", "huge-head", "huge-body"],
)
async def test_unreadable_requests_are_answered_and_the_port_lives_on(
    port, data, status, monkeypatch
):
    monkeypatch.setattr(http_server, "BODY_LIMIT_BYTES", 10)
    assert (await say(port, data)).split()[1] == status
    assert b"200 OK" in await say(port, b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")


@pytest.mark.parametrize(
    "data", [b"", b"GET / HT", b"PUT / HTTP/1.1\r\ncontent-length: 5\r\n\r\nab"]
)
async def test_callers_that_leave_early_are_forgotten(port, data):
    assert await say(port, data) == b""


async def test_a_caller_that_never_finishes_is_cut_off(port, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_LIMIT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n")
    assert await reader.read() == b""
    writer.close()


async def test_a_fault_in_a_handler_is_a_500_and_not_the_end(port):
    answer = await say(port, b"GET /fault HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b'"code":"internal"' in answer
    assert b"200 OK" in await say(port, b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")


async def test_closing_ends_waiting_connections():
    async def never(_request):
        await asyncio.Event().wait()
        return Answer(200)

    server = HttpServer(never)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0)
    await server.close()
    assert await reader.read() == b""
    writer.close()


async def test_closing_with_an_idle_connection_is_silent(capsys):
    """asyncio's streams report a handler that was cancelled; a stop is no fault."""
    server = HttpServer(echo)
    port = await server.start("127.0.0.1", 0)
    faults = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await server.close()
    await reader.read()
    await asyncio.sleep(0)
    writer.close()
    assert faults == []
