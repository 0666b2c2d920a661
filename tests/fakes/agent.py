"""An agent's admin port on a real socket: checks signatures, orders epochs, answers as told.

Written apart from the product's agent, from the wire schema alone, so that both sides are tested
against the contract and not against each other's mistakes.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from routing_agent import wire


class FakeAgent:
    """One agent: what it runs, what it was sent, and how it misbehaves."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.public_key = ""
        self.lineage = ""
        self.agent = ""  # public id
        self.token = ""
        self.table: wire.RoutingTable | None = None
        self.behaviour = "obey"  # hang, garbage, invalid
        self.delay_s = 0.0
        self.statuses: list[int] = []
        self.epochs_sent: list[int] = []
        self.started_at = 1000.0
        self.reports = 0
        self.actions: list[wire.Action] = []
        self.engines: dict[str, wire.EngineProcess] = {}
        self.refuses = ""  # why it takes no action
        self.released = threading.Event()
        self._nonces: set[str] = set()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True

    @property
    def admin_url(self) -> str:
        """Where the control plane reaches it."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[FakeAgent]:
        """Serve until left."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def register_request(self, token: str) -> wire.RegisterRequest:
        """What it sends to be registered."""
        return wire.RegisterRequest(
            token=token,
            name=self.name,
            traffic_url="http://127.0.0.1:1",
            admin_url=self.admin_url,
        )

    def accept(self, reply: wire.RegisterReply) -> None:
        """Keep what registration gave."""
        self.agent, self.token = reply.agent, reply.agent_token
        self.public_key, self.lineage = reply.public_key, reply.lineage

    def report(self, *, same: bool = False, **given: Any) -> wire.Report:
        """Make its next report; `same` repeats the last number."""
        self.reports += 0 if same else 1
        running = self.table
        state: dict[str, Any] = {
            "agent": self.agent,
            "number": self.reports,
            "started_at": self.started_at,
            "sent_at": self.started_at,
            "lineage": running.lineage if running else "",
            "epoch": running.epoch if running else 0,
            "digest": running.digest if running else "",
            "table_source": "push" if running else "none",
        }
        return wire.Report(**(state | given))

    def check(self, method: str, path: str, body: bytes, headers: Any) -> str:
        """Say what is wrong with a call's signature, or nothing."""
        signature = headers.get(wire.SIGNATURE_HEADER, "")
        sent, nonce = headers.get(wire.TIME_HEADER, ""), headers.get(wire.NONCE_HEADER, "")
        signed = wire.signed_bytes(method=method, path=path, body=body, time=sent, nonce=nonce)
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(self.public_key))
        try:
            key.verify(base64.b64decode(signature), signed)
        except InvalidSignature:
            return "wrong signature"
        if abs(time.time() - float(sent)) > wire.SIGNATURE_WINDOW_S:
            return "out of time"
        with self._lock:
            if nonce in self._nonces:
                return "replayed"
            self._nonces.add(nonce)
        return ""

    def answer(self, method: str, path: str, body: bytes, headers: Any) -> tuple[int, Any]:
        """Give status and content of the answer to one call."""
        fault = self.check(method, path, body, headers)
        if fault:
            return 401, {"error": {"message": fault}}
        if self.behaviour == "garbage":
            return 200, ["what?"]
        if path == "/agent/v1/routing-table":
            receipt = self.receive(body)
            return 422 if receipt.outcome == "invalid" else 200, receipt
        if path == "/agent/v1/actions":
            return 200, self.obey(msgspec.json.decode(body, type=wire.Action))
        question = msgspec.json.decode(body, type=wire.ExplainRequest)
        return 200, wire.Explanation(
            pool="chat", adapter=question.adapter, reason=f"asked for {question.model}"
        )

    def obey(self, action: wire.Action) -> wire.ActionReceipt:
        """Take an action once, by its number."""
        with self._lock:
            self.actions.append(action)
            known = self.engines.get(action.do.replica)
            if self.refuses:
                return wire.ActionReceipt(outcome="refused", detail=self.refuses)
            if known is not None and action.serial <= known.serial:
                same = action.serial == known.serial
                return wire.ActionReceipt(outcome="already_there" if same else "refused_older")
            starts = isinstance(action.do, wire.StartEngine)
            self.engines[action.do.replica] = wire.EngineProcess(
                replica=action.do.replica,
                state="running" if starts else "stopped",
                serial=action.serial,
                port=action.do.port if starts else 0,
                gpus=action.do.gpus if starts else (),
                started_at=time.time() if starts else None,
            )
            return wire.ActionReceipt(outcome="accepted")

    def receive(self, body: bytes) -> wire.TableReceipt:
        """Take a table in, unless it is older or foreign."""
        table = msgspec.json.decode(body, type=wire.RoutingTable)
        with self._lock:
            self.epochs_sent.append(table.epoch)
            return self._receipt(self._judge(table))

    def _judge(self, table: wire.RoutingTable) -> str:
        if table.digest != wire.table_digest(table) or self.behaviour == "invalid":
            return "invalid"
        if table.lineage != self.lineage:
            return "refused_lineage"
        running = self.table
        if running is not None and running.lineage == self.lineage:
            if table.epoch < running.epoch:
                return "refused_older"
            if table.epoch == running.epoch:
                return "already_there" if table.digest == running.digest else "refused_older"
        self.table = table
        return "applied"

    def _receipt(self, outcome: Any) -> wire.TableReceipt:
        running = self.table
        return wire.TableReceipt(
            outcome=outcome,
            lineage=running.lineage if running else "",
            epoch=running.epoch if running else 0,
            digest=running.digest if running else "",
            detail="$.pools[0].name: as told" if outcome == "invalid" else "",
        )


def _handler_of(agent: FakeAgent) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer("PUT")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if agent.behaviour == "hang":
                agent.released.wait(30)
            else:
                agent.released.wait(agent.delay_s)
                self._send(*agent.answer(method, self.path, body, self.headers))

        def _send(self, status: int, content: Any) -> None:
            agent.statuses.append(status)
            told = msgspec.json.encode(content)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Handler
