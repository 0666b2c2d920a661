"""The admin port: tables in, explanations and state out, metrics and health for whoever asks.

Under a control plane every `/agent/v1/` call must carry its signature. Stand-alone there is nobody
who could sign: reading is open to this machine, and tables cannot be pushed.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote

import msgspec
import structlog

from routing_agent import __version__, metrics_page, wire
from routing_agent.control.http_server import Answer, Request, error_answer, json_answer
from routing_agent.control.receiver import Receiver
from routing_agent.control.reporter import resident_bytes
from routing_agent.control.signatures import SignatureRefused, Verifier
from routing_agent.control.traffic import TrafficPort
from routing_agent.core.explain import explain
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica_report import report_of
from routing_agent.metrics import Metrics
from routing_agent.records import RecentRecords

log = structlog.get_logger()

REQUESTS_PATH = "/agent/v1/requests"
ACTIONS_PATH = "/agent/v1/actions"
REQUESTS_SHOWN = 50
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Gate(Protocol):
    """Decides who may call `/agent/v1/`; returns to let in, raises SignatureRefused to keep out."""

    def check(self, request: Request) -> None:
        """Let the request in or refuse it."""
        ...


@dataclass
class SignedOnly:
    """Only the control plane, by its signature. Before registration: nobody."""

    verifier: Verifier | None = None

    def check(self, request: Request) -> None:
        """Let in what our control plane signed."""
        if self.verifier is None:
            raise SignatureRefused(
                "not_registered", "This agent has not registered with its control plane yet."
            )
        self.verifier.check(
            method=request.method,
            path=request.target,
            body=request.body,
            headers=request.headers,
        )


class LocalReading:
    """Stand-alone: this machine may read; nobody may push."""

    def check(self, request: Request) -> None:
        """Let in reading calls from loopback addresses."""
        if request.method == "PUT" or request.path == ACTIONS_PATH:
            raise SignatureRefused(
                "standalone",
                "This agent runs stand-alone: it makes its own table from --worker-urls and takes "
                "none. Start it as `agent --control-plane URL` to push tables.",
            )
        if not is_loopback(request.peer):
            raise SignatureRefused(
                "loopback_only", "Stand-alone, this port answers only callers on the same machine."
            )


@dataclass
class AdminPort:
    """Answers the admin port's requests; `handle` is the whole interface."""

    gate: Gate
    fleet: Fleet
    metrics: Metrics
    traffic: TrafficPort
    receiver: Receiver | None = None  # None: stand-alone
    more_state: Callable[[], dict[str, object]] = dict
    started_mono: float = field(default_factory=time.monotonic)
    records: RecentRecords = field(default_factory=RecentRecords)
    obey: Callable[[wire.Action], Awaitable[wire.ActionReceipt]] | None = None  # None: no engines

    # Set where other processes choose: asks one of them, with `{}` for its own state.
    ask: Callable[[bytes], Awaitable[bytes | None]] | None = None
    workers: Callable[[], list[dict[str, object]]] = list

    async def handle(self, request: Request) -> Answer:
        """Answer one request."""
        if not request.path.startswith("/agent/v1/"):
            return self._open(request)
        try:
            self.gate.check(request)
        except SignatureRefused as refusal:
            log.warning(
                "admin_call_refused", path=request.path, peer=request.peer, code=refusal.code
            )
            return error_answer(401, refusal.code, refusal.message)
        route = self._routes().get((request.method, request.path))
        if route is None and request.path.startswith(f"{REQUESTS_PATH}/"):
            return self._request_life(request)
        if route is None:
            return self._no_route(request)
        return await route(request)

    def _routes(self) -> dict[tuple[str, str], Callable[[Request], Awaitable[Answer]]]:
        return {
            ("PUT", "/agent/v1/routing-table"): self._put_table,
            ("GET", "/agent/v1/routing-table"): self._get_table,
            ("POST", "/agent/v1/explain"): self._explain,
            ("POST", ACTIONS_PATH): self._act,
            ("GET", "/agent/v1/state"): self._state,
            ("GET", REQUESTS_PATH): self._request_lives,
        }

    def _no_route(self, request: Request) -> Answer:
        methods = sorted(m for m, path in self._routes() if path == request.path)
        if not methods:
            return error_answer(404, "not_found", f"There is no {request.path} here.")
        message = f"{request.path} takes {' and '.join(methods)}, not {request.method}."
        answer = error_answer(405, "method_not_allowed", message)
        return Answer(405, answer.body, headers={"allow": ", ".join(methods)})

    # -- open to all ---------------------------------------------------------------------------

    def _open(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return error_answer(405, "method_not_allowed", "Only GET here.")
        match request.path:
            case "/metrics":
                text = metrics_page.render(self.metrics, self.fleet, now=time.monotonic())
                return Answer(200, text.encode(), METRICS_TYPE)
            case "/healthz":
                return json_answer({"status": "ok"})
            case "/readyz":
                return self._readiness()
        return error_answer(404, "not_found", f"There is no {request.path} here.")

    def _readiness(self) -> Answer:
        if self.fleet.table is None:
            return json_answer({"ready": False, "reason": "no routing table yet"}, 503)
        if self.traffic.is_draining:
            return json_answer({"ready": False, "reason": "draining"}, 503)
        lacking = self.fleet.models_without_replica(time.monotonic())
        return json_answer(
            {"ready": True, "epoch": self.fleet.table.epoch, "models_without_replica": lacking}
        )

    # -- for the control plane -----------------------------------------------------------------

    async def _put_table(self, request: Request) -> Answer:
        if self.receiver is None:
            return error_answer(401, "standalone", "A stand-alone agent takes no tables.")
        try:
            receipt = await self.receiver.receive(request.body, "push")
        except OSError as error:
            log.error("table_not_stored", error=str(error))
            return error_answer(
                507, "not_stored", f"The table could not be written to disk ({error.strerror})."
            )
        return json_answer(receipt, 422 if receipt.outcome == "invalid" else 200)

    async def _get_table(self, _request: Request) -> Answer:
        table = self.fleet.wire_table
        if table is None:
            return error_answer(404, "no_table", "This agent has no routing table yet.")
        return json_answer(wire.redacted(table))

    async def _explain(self, request: Request) -> Answer:
        try:
            question = msgspec.json.decode(request.body, type=wire.ExplainRequest)
        except msgspec.MsgspecError as error:
            return error_answer(400, "invalid", str(error))
        answer = None if self.ask is None else await self.ask(request.body)
        if answer is not None:
            return Answer(200, answer)
        return json_answer(explain(self.fleet, question, now=time.monotonic()))

    async def _act(self, request: Request) -> Answer:
        """Start or stop an engine, if this agent's own configuration allows it."""
        if self.obey is None:
            message = (
                "This agent starts no engines: give it --engine-ports and --engine-program to"
                " let the control plane start some here."
            )
            return json_answer(wire.ActionReceipt(outcome="refused", detail=message))
        try:
            action = msgspec.json.decode(request.body, type=wire.Action)
        except msgspec.MsgspecError as error:
            return error_answer(400, "invalid", str(error))
        return json_answer(await self.obey(action))

    async def _request_lives(self, _request: Request) -> Answer:
        """Give the newest lives of requests that were kept."""
        return json_answer({"requests": self.records.newest(REQUESTS_SHOWN)})

    def _request_life(self, request: Request) -> Answer:
        request_id = unquote(request.path.removeprefix(f"{REQUESTS_PATH}/"))
        found = self.records.find(request_id)
        if found is not None:
            return json_answer(found)
        return error_answer(
            404,
            "not_kept",
            "No record of this request id in memory: failures, traced requests and a share of the "
            "rest are kept, the newest of them here.",
        )

    async def _state(self, _request: Request) -> Answer:
        now = time.monotonic()
        table = self.fleet.table
        state: dict[str, object] = {
            "version": __version__,
            "uptime_s": now - self.started_mono,
            "lineage": table.lineage if table else "",
            "epoch": table.epoch if table else 0,
            "digest": table.digest if table else "",
            "table_source": self.receiver.source if self.receiver else "standalone",
            "faults": table.faults if table else (),
            "draining": self.traffic.is_draining,
            "open_connections": self.traffic.open_connections,
            "running_requests": self.traffic.running_requests,
            "memory_bytes": resident_bytes(),
            "replicas": [report_of(r, now) for r in self.fleet.replicas.values()],
            "leaving": [report_of(r, now) for r in self.fleet.leaving],
            # Of tenants that waited in a pool's queue: the lowest counter comes next.
            "fair_shares": {
                name: pool.shares.counters() for name, pool in self.fleet.pools.items()
            },
            "bytes_per_token": self.fleet.ratios.learned(),
        }
        if self.ask is not None:
            state["workers"] = self.workers()
            answer = await self.ask(b"")
            state |= {} if answer is None else msgspec.json.decode(answer)
        return json_answer(state | self.more_state())


def is_loopback(peer: str) -> bool:
    """Say whether an address is of this machine's loopback, IPv4 in IPv6 included."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
