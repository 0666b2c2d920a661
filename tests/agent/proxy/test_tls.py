"""TLS on both sides: engines that are trusted or not, clients, and certificates that change."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from routing_agent import tls, wire
from routing_agent.http_client import CallFailed, HttpClient
from routing_agent.proxy.ingress import ClientConnection
from tests.agent.certificates import Authority
from tests.agent.proxy.client import OPEN, RawClient, chat
from tests.agent.proxy.conftest import Rig, until
from tests.fakes.engine import DONE, Call, FakeEngine, event, obliging

STREAM = chat(stream=True)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def serving(pair: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pair)
    return context


async def with_engine(rig: Rig, pair: tuple[Path, Path], *, host: str = "127.0.0.1") -> FakeEngine:
    """Add an https engine to a rig that has none yet, and trust nobody but the system."""
    await rig.start()
    rig.engines.append(await FakeEngine.start(obliging(), tls=serving(pair), host=host))
    rig.configure(max_retries=0)
    rig.set_endpoints(rig.endpoint(1))
    return rig.engines[1]


@pytest.mark.parametrize(
    ("listens", "called"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]"), ("127.0.0.1", "localhost")],
)
async def test_engines_are_reached_by_https(
    rig: Rig, authority: Authority, listens: str, called: str
) -> None:
    """IPv4, IPv6 and host names; connections are kept as they are without TLS."""
    pair = authority.issue("127.0.0.1", "::1", "localhost")
    rig.proxy.engine_trust = tls.trust(authority.ca_file)
    engine = await with_engine(rig, pair, host=listens)
    url = f"https://{called}:{engine.port}"
    rig.set_endpoints(wire.Endpoint(replica="r1", url=url))
    for body in (STREAM, chat(), chat(messages=[{"role": "user", "content": "x" * 200_000}])):
        assert (await rig.ask(body)).status == 200
    assert len(engine.connections) == 1
    assert engine.calls[0].header("host") == f"{called}:{engine.port}"


@pytest.mark.parametrize(
    ("names", "expired", "trusted", "why"),
    [
        (("127.0.0.1",), False, False, "unable to get local issuer certificate"),
        (("10.1.1.1",), False, True, "IP address mismatch"),
        (("127.0.0.1",), True, True, "certificate has expired"),
    ],
)
async def test_an_engine_that_is_not_trusted_is_told_with_the_reason_and_the_remedy(
    rig: Rig, authority: Authority, names: tuple[str, ...], expired: bool, trusted: bool, why: str
) -> None:
    """Both the relay and the agent's own calls say what is wrong with the certificate."""
    trust = tls.trust(authority.ca_file if trusted else None)
    rig.proxy.engine_trust = trust
    engine = await with_engine(rig, authority.issue(*names, expired=expired))
    reply = await rig.ask(chat())
    assert (reply.status, reply.error["code"]) == (502, "engine_failed")
    assert why in reply.error["message"]
    assert "--engine-ca-file" in reply.error["message"]
    assert engine.calls == []
    client = HttpClient(tls=trust)
    with pytest.raises(CallFailed, match=why):
        await client.call("GET", engine.url + "/health")
    await client.close()


async def test_an_engine_that_speaks_no_tls_is_told_so(rig: Rig) -> None:
    """https:// by mistake."""
    await rig.start()
    rig.configure(max_retries=0)
    server = await asyncio.start_server(_answers_plainly, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    rig.set_endpoints(wire.Endpoint(replica="r0", url=f"https://127.0.0.1:{port}"))
    reply = await rig.ask(chat())
    assert "does it really speak https?" in reply.error["message"]
    server.close()


async def _answers_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
    writer.close()


# -- clients -------------------------------------------------------------------------------------


class Port:
    """A second, encrypted traffic port of the same proxy."""

    def __init__(self, rig: Rig, authority: Authority) -> None:
        self.rig = rig
        self.authority = authority
        self.pair = authority.issue("127.0.0.1", "localhost", file="first")
        self.certificate = tls.ServerCertificate(*self.pair)

    async def open(self) -> Port:
        self.server = await asyncio.get_running_loop().create_server(
            lambda: cast(asyncio.Protocol, ClientConnection(self.rig.proxy)),
            "127.0.0.1",
            0,
            ssl=self.certificate.context,
            ssl_shutdown_timeout=tls.SHUTDOWN_LIMIT_S,
        )
        self.number: int = self.server.sockets[0].getsockname()[1]
        return self

    async def client(self, *, name: str | None = "localhost") -> RawClient:
        trust = tls.trust(self.authority.ca_file)
        trust.check_hostname = name is not None
        streams = await asyncio.open_connection(
            "127.0.0.1", self.number, ssl=trust, server_hostname=name or "127.0.0.1"
        )
        client = RawClient(*streams)
        OPEN.append(client)
        return client

    async def serial(self) -> bytes:
        """Give the certificate that a new client is shown."""
        client = await self.client()
        shown = client.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        client.close()
        assert isinstance(shown, bytes)
        return shown

    def install(self, pair: tuple[Path, Path]) -> None:
        """Put other files in the place of the certificate's."""
        for new, old in zip(pair, self.pair, strict=True):
            shutil.copy(new, old.with_suffix(".new"))
            old.with_suffix(".new").replace(old)


@pytest.fixture
async def port(rig: Rig, authority: Authority):
    await rig.start()
    port = await Port(rig, authority).open()
    yield port
    port.server.close()


async def test_clients_are_served_by_https(rig: Rig, port: Port) -> None:
    """Plain, as a stream, large, and several on one connection."""
    client = await port.client()
    assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    for body in (chat(), STREAM, chat(messages=[{"role": "user", "content": "x" * 300_000}])):
        client.post(body)
        assert (await client.reply()).status == 200
    client.close()
    await until(lambda: not rig.proxy.clients)


async def test_a_client_that_leaves_by_tls_frees_its_engine(rig: Rig, port: Port) -> None:
    """R08: the same over TLS."""

    async def endless(call: Call) -> None:
        await call.head(200, "text/event-stream")
        while not call.peer_closed.is_set():
            await call.chunk(event("x"))
            await call.pause(0.01)

    rig.engines[0].script = endless
    client = await port.client()
    client.post(STREAM)
    await client.head()
    await client.chunk()
    client.close()
    await until(lambda: rig.engines[0].open_connections == 0)
    assert rig.records[0].status == 499


async def test_a_changed_certificate_is_shown_to_new_clients_and_breaks_no_stream(
    rig: Rig, port: Port
) -> None:
    """Reload: the stream that runs goes on under the old one."""
    go = asyncio.Event()

    async def long(call: Call) -> None:
        await call.head(200, "text/event-stream")
        await call.chunk(event("a"))
        await go.wait()
        await call.stream_rest(event("b", finish="stop"), DONE)

    rig.engines[0].script = long
    first = await port.serial()
    client = await port.client()
    client.post(STREAM)
    await client.head()
    body = await client.chunk()
    port.install(port.authority.issue("localhost", file="second"))
    assert await port.serial() == first  # nobody has looked yet
    port.certificate.refresh()
    second = await port.serial()
    assert second != first
    go.set()
    while chunk := await client.chunk():
        body += chunk
    assert b"[DONE]" in body
    client.close()


async def test_broken_new_files_keep_the_old_certificate_and_say_so_once(
    rig: Rig, port: Port
) -> None:
    """A half-written pair, a missing key, then a good pair."""
    first = await port.serial()
    other = port.authority.issue("localhost", file="second")
    with capture_logs() as logs:
        shutil.copy(other[0], port.pair[0])  # its key has not come yet
        port.certificate.refresh()
        port.certificate.refresh()
        assert await port.serial() == first
        port.pair[1].unlink()
        port.certificate.refresh()
        assert await port.serial() == first
        shutil.copy(other[1], port.pair[1])
        port.certificate.refresh()
    said = [line["why"] for line in logs if line["event"] == "certificate_not_reloaded"]
    assert len(said) == 2
    assert "key values mismatch" in said[0]
    assert "No such file" in said[1]
    assert await port.serial() != first


async def test_files_that_are_as_they_were_are_not_loaded_again(rig: Rig, port: Port) -> None:
    """Looking costs nothing."""
    with capture_logs() as logs:
        port.certificate.refresh()
    assert logs == []


@pytest.mark.parametrize("broken", ["missing", "garbage", "protected"])
def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(
    authority: Authority, tmp_path: Path, broken: str
) -> None:
    """The message names both options; a protected key does not ask on the terminal."""
    cert, key = authority.issue("localhost")
    if broken == "missing":
        cert.unlink()
    elif broken == "garbage":
        cert.write_text("hello")
    else:
        key.write_text(
            "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n"
        )
    with pytest.raises(tls.CertificateUnusable, match=r"--tls-cert-file .* --tls-key-file"):
        tls.ServerCertificate(cert, key)


def test_a_file_of_authorities_that_is_none_is_refused(tmp_path: Path) -> None:
    """Before any engine is asked."""
    (tmp_path / "ca.pem").write_text("hello")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(tls.CertificateUnusable, match=r"--engine-ca-file .*pem cannot be used"):
            tls.trust(tmp_path / name)


async def test_plain_http_at_the_encrypted_port_is_cut(rig: Rig, port: Port) -> None:
    """And the next client is served."""
    plain = await RawClient.open(port.number)
    plain.post(chat())
    assert await plain.ended()
    client = await port.client()
    client.post(chat())
    assert json.loads((await client.reply()).body)["object"] == "chat.completion"
    client.close()
