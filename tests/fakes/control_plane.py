"""A control plane on a real socket: registers agents, signs tables, books reports, loses answers.

It keeps the wire contract and nothing else: no database, no roles, no publishing loop.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from controlplane.domain.quotas import Caller, Ledger, lease
from routing_agent import wire
from routing_agent.control.http_server import Answer, HttpServer, Request, error_answer, json_answer

REGISTER = "/api/v1/agent/register"
REPORT = "/api/v1/agent/report"
TABLE = "/api/v1/agent/table"
ADAPTERS = "/api/v1/agent/adapters/"
LEASES = "/api/v1/agent/leases"


@dataclass
class FakeControlPlane:
    """One lineage, its key, its tokens, its newest table, and everything agents told it."""

    lineage: str = "lineage-1"
    now: Callable[[], float] = time.time
    tokens: set[str] = field(default_factory=lambda: {"once"})
    table: wire.RoutingTable | None = None
    usage_acknowledged_by_hand: int | None = None
    lose_answers: int = 0
    status: int | None = None  # answer every call with this instead
    report_interval_s: float = 0.05
    others: tuple[wire.AgentPlaced, ...] = ()  # of whom every agent is told
    reports: list[wire.Report] = field(default_factory=list)
    booked: list[wire.Report] = field(default_factory=list)
    usage: dict[int, wire.UsageRecord] = field(default_factory=dict)
    records: dict[str, wire.RequestRecord] = field(default_factory=dict)  # by uid
    takes_records: bool = True
    pairs: dict[str, wire.ShadowPair] = field(default_factory=dict)  # by uid
    limits: dict[str, wire.TenantLimits] = field(default_factory=dict)  # to be shared out
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    lease_calls: list[wire.LeaseRequest] = field(default_factory=list)
    lose_lease_answers: int = 0
    holds_leases: asyncio.Event | None = None  # answers no lease call until it is set
    files: dict[tuple[str, str], bytes] = field(default_factory=dict)  # by digest and name
    calls: Counter[str] = field(default_factory=Counter)
    registered: list[wire.RegisterRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self.agents: dict[str, str] = {}  # token -> id
        self._server: HttpServer | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def public_key(self) -> str:
        return base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    async def start(self, port: int = 0) -> FakeControlPlane:
        self._server = HttpServer(self._handle)
        self.port = await self._server.start("127.0.0.1", port or self.port)
        return self

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.close()

    # -- what it does to agents ----------------------------------------------------------------

    def signature(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        at: float | None = None,
        nonce: str | None = None,
    ) -> dict[str, str]:
        sent = repr(self.now() if at is None else at)
        nonce = nonce or secrets.token_hex(16)
        signed = wire.signed_bytes(method=method, path=path, body=body, time=sent, nonce=nonce)
        return {
            wire.SIGNATURE_HEADER: base64.b64encode(self._key.sign(signed)).decode(),
            wire.TIME_HEADER: sent,
            wire.NONCE_HEADER: nonce,
        }

    async def push(
        self, admin_url: str, table: wire.RoutingTable | bytes, **signing: object
    ) -> httpx.Response:
        body = table if isinstance(table, bytes) else msgspec.json.encode(table)
        headers = self.signature("PUT", "/agent/v1/routing-table", body, **signing)  # type: ignore[arg-type]
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.put(
                f"{admin_url}/agent/v1/routing-table", content=body, headers=headers
            )

    async def ask(self, admin_url: str, path: str, body: bytes = b"") -> httpx.Response:
        method = "POST" if body else "GET"
        headers = self.signature(method, path, body)
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.request(method, admin_url + path, headers=headers, content=body)

    # -- what agents ask of it -----------------------------------------------------------------

    async def _handle(self, request: Request) -> Answer:
        self.calls[request.path] += 1
        if self.status is not None:
            return error_answer(self.status, "told_so", "told to fail")
        match request.method, request.path:
            case "POST", "/api/v1/agent/register":
                return self._register(request)
            case "POST", "/api/v1/agent/report":
                return self._report(request)
            case "GET", "/api/v1/agent/table":
                return self._table(request)
            case "POST", "/api/v1/agent/leases":
                return await self._leases(request)
        if request.path.startswith(ADAPTERS):
            return self._file(request)
        return error_answer(404, "not_found", "no such path")

    def _register(self, request: Request) -> Answer:
        asked = msgspec.json.decode(request.body, type=wire.RegisterRequest)
        if asked.token not in self.tokens:
            return error_answer(401, "token_unknown", "This token was used or never existed.")
        self.tokens.remove(asked.token)
        self.registered.append(asked)
        token = secrets.token_urlsafe(16)
        self.agents[token] = f"agent-{len(self.agents) + 1}"
        return json_answer(
            wire.RegisterReply(
                agent=self.agents[token],
                agent_token=token,
                public_key=self.public_key,
                lineage=self.lineage,
                server_time=self.now(),
                report_interval_s=self.report_interval_s,
            )
        )

    def _report(self, request: Request) -> Answer:
        if not self._agent(request):
            return error_answer(401, "agent_unknown", "No agent has this token.")
        report = msgspec.json.decode(request.body, type=wire.Report)
        self.reports.append(report)
        if all(report.number != seen.number for seen in self.booked):
            self.booked.append(report)
        self.usage |= {record.number: record for record in report.usage}
        self.records |= {r.uid: r for r in report.records if self.takes_records}
        numbers = [r.number for r in report.records if self.takes_records]
        self.pairs |= {p.uid: p for p in report.shadow_pairs}
        if self.lose_answers:
            self.lose_answers -= 1
            return error_answer(502, "lost", "the answer is lost")
        acknowledged = self.usage_acknowledged_by_hand
        return json_answer(
            wire.ReportReply(
                server_time=self.now(),
                lineage=self.lineage,
                epoch=self.table.epoch if self.table else 0,
                usage_acknowledged=max(self.usage, default=0)
                if acknowledged is None
                else acknowledged,
                records_acknowledged=max(numbers, default=0),
                shadow_pairs_acknowledged=max((p.number for p in report.shadow_pairs), default=0),
                report_interval_s=self.report_interval_s,
                others=self.others,
            )
        )

    async def _leases(self, request: Request) -> Answer:
        agent = self._agent(request)
        if not agent:
            return error_answer(401, "agent_unknown", "No agent has this token.")
        asked = msgspec.json.decode(request.body, type=wire.LeaseRequest)
        self.lease_calls.append(asked)
        if self.holds_leases is not None:
            await self.holds_leases.wait()
        caller = Caller(agent=agent, start=asked.start, serial=asked.serial)
        grants = []
        for ask in asked.asks:
            ledger = self.ledgers.get(ask.tenant, Ledger())
            told = lease(ledger, self.limits[ask.tenant], ask, caller=caller, now=self.now())
            self.ledgers[ask.tenant] = told.ledger
            grants.append(told.grant)
        if self.lose_lease_answers:
            self.lose_lease_answers -= 1
            return error_answer(502, "lost", "the answer is lost")
        return json_answer(wire.LeaseReply(grants=tuple(grants)))

    def _table(self, request: Request) -> Answer:
        if not self._agent(request):
            return error_answer(401, "agent_unknown", "No agent has this token.")
        if self.table is None:
            return error_answer(404, "no_table", "Nothing is published yet.")
        body = msgspec.json.encode(self.table)
        return Answer(200, body, headers=self.signature("GET", TABLE, body))

    def _file(self, request: Request) -> Answer:
        if not self._agent(request):
            return error_answer(401, "agent_unknown", "No agent has this token.")
        digest, _, name = request.path.removeprefix(ADAPTERS).partition("/")
        found = self.files.get((digest, name))
        if found is None:
            return error_answer(404, "not_found", "There is no such adapter.")
        return Answer(200, found, content_type="application/octet-stream")

    def _agent(self, request: Request) -> str | None:
        return self.agents.get(request.headers.get("authorization", "").removeprefix("Bearer "))
