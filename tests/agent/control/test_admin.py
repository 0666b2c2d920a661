"""The admin port: only the control plane commands, anybody may look at health and metrics."""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import msgspec
import pytest

from routing_agent import wire
from routing_agent.control.admin import AdminPort, LocalReading, SignedOnly, is_loopback
from routing_agent.control.clock import ControlClock
from routing_agent.control.http_server import HttpServer, Request
from routing_agent.control.receiver import Receiver
from routing_agent.control.signatures import SignatureRefused, Verifier
from routing_agent.control.snapshot import TableStore
from routing_agent.core.fleet import Fleet
from routing_agent.metrics import Metrics
from tests.agent.control.tables import a_table
from tests.fakes.control_plane import FakeControlPlane

TABLE = "/agent/v1/routing-table"
STATE = "/agent/v1/state"


@dataclass
class Traffic:
    """A traffic port's figures, set by hand."""

    open_connections: int = 3
    running_requests: int = 2
    is_draining: bool = False

    def waiting(self) -> tuple[wire.PoolWaiting, ...]:
        return ()


class Agent:
    """An admin port on a real socket with everything behind it, and its control plane."""

    def __init__(self, tmp_path):
        self.control_plane = FakeControlPlane()
        self.fleet = Fleet()
        self.traffic = Traffic()
        self.gate = SignedOnly()
        self.receiver = Receiver(
            TableStore(tmp_path / "table.json"),
            lambda table: self.fleet.apply(table, now=0.0, wall=0.0),
        )
        self.receiver.trust("lineage-1")
        self.admin = AdminPort(
            self.gate, self.fleet, Metrics(), self.traffic, self.receiver, lambda: {"more": 1}
        )

    def register(self):
        self.gate.verifier = Verifier(self.control_plane.public_key, ControlClock())

    async def __aenter__(self):
        self.server = HttpServer(self.admin.handle)
        self.url = f"http://127.0.0.1:{await self.server.start('127.0.0.1', 0)}"
        self.client = httpx.AsyncClient(base_url=self.url, trust_env=False)
        return self

    async def __aexit__(self, *_):
        await self.client.aclose()
        await self.server.close()

    async def push(self, table, **signing):
        return await self.control_plane.push(self.url, table, **signing)

    async def signed(self, method, path, body=b"", signed_path=None):
        headers = self.control_plane.signature(method, signed_path or path, body)
        return await self.client.request(method, path, content=body, headers=headers)


@pytest.fixture
async def agent(tmp_path):
    async with Agent(tmp_path) as agent:
        agent.register()
        yield agent


async def test_a_pushed_table_is_applied_and_acknowledged(agent):
    answer = await agent.push(a_table(4))
    receipt = msgspec.json.decode(answer.content, type=wire.TableReceipt)
    assert (answer.status_code, receipt.outcome, receipt.epoch) == (200, "applied", 4)
    assert agent.fleet.table.epoch == 4


async def test_an_invalid_table_is_told_with_its_first_bad_field(agent):
    answer = await agent.push(b'{"kind":"routing-table","lineage":"lineage-1","epoch":"x"}')
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("$.epoch")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", TABLE),
        ("GET", TABLE),
        ("POST", "/agent/v1/explain"),
        ("GET", STATE),
        ("POST", "/agent/v1/actions"),
        ("GET", "/agent/v1/anything"),
    ],
)
async def test_without_a_signature_nothing_is_told_or_done(agent, method, path):
    answer = await agent.client.request(method, path, content=msgspec.json.encode(a_table(4)))
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unsigned"
    assert agent.fleet.table is None


async def test_a_replayed_push_is_refused(agent):
    nonce = "ab" * 16
    assert (await agent.push(a_table(4), nonce=nonce)).status_code == 200
    replayed = await agent.push(a_table(4), nonce=nonce)
    assert (replayed.status_code, replayed.json()["error"]["code"]) == (401, "replayed")


async def test_an_altered_push_is_refused(agent):
    good = msgspec.json.encode(a_table(4))
    headers = agent.control_plane.signature("PUT", TABLE, good)
    answer = await agent.client.put(TABLE, content=good[:-1] + b" }", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "wrong_signature")
    assert agent.fleet.table is None


async def test_an_old_push_is_refused(agent):
    answer = await agent.push(a_table(4), at=agent.control_plane.now() - 90)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "out_of_time")


async def test_a_signature_for_another_path_is_refused(agent):
    answer = await agent.signed("GET", STATE, signed_path=TABLE)
    assert answer.json()["error"]["code"] == "wrong_signature"


async def test_before_registration_nobody_commands(tmp_path):
    async with Agent(tmp_path) as agent:
        answer = await agent.push(a_table(4))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_registered")
        assert (await agent.client.get("/healthz")).status_code == 200


async def test_credentials_are_redacted(agent):
    await agent.push(a_table(4))
    answer = await agent.signed("GET", TABLE)
    assert answer.json()["epoch"] == 4
    assert "engine-secret" not in answer.text


async def test_state_tells_table_replicas_and_connections(agent):
    await agent.push(a_table(4, urls=("http://a:1", "http://b:1")))
    state = (await agent.signed("GET", STATE)).json()
    assert (state["epoch"], state["table_source"], state["digest"]) == (
        4,
        "push",
        agent.fleet.table.digest,
    )
    assert [r["replica"] for r in state["replicas"]] == ["r0", "r1"]
    assert (state["open_connections"], state["running_requests"], state["more"]) == (3, 2, 1)
    assert state["memory_bytes"] > 1_000_000
    assert "engine-secret" not in str(state)


async def test_explain_answers_with_the_agents_own_core(agent):
    await agent.push(a_table(4))
    body = msgspec.json.encode(wire.ExplainRequest(model="m", prompt="hello"))
    explanation = (await agent.signed("POST", "/agent/v1/explain", body)).json()
    assert (explanation["pool"], explanation["replica"]) == ("chat", "r0")
    bad = await agent.signed("POST", "/agent/v1/explain", b"{}")
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid")


async def test_ready_means_having_a_table_and_not_draining(agent):
    assert (await agent.client.get("/readyz")).status_code == 503
    await agent.push(a_table(4))
    answer = (await agent.client.get("/readyz")).json()
    assert answer == {"ready": True, "epoch": 4, "models_without_replica": []}
    agent.fleet.pools["chat"].replicas[0].note_doubt("steps", "stands still")
    answer = (await agent.client.get("/readyz")).json()
    assert answer["models_without_replica"] == ["m"]
    agent.traffic.is_draining = True
    assert (await agent.client.get("/readyz")).json()["reason"] == "draining"


async def test_metrics_are_open(agent):
    answer = await agent.client.get("/metrics")
    assert answer.status_code == 200
    assert "signalbox_" in answer.text


async def test_unknown_paths_and_methods_are_told(agent):
    assert (await agent.signed("GET", "/agent/v1/nothing")).status_code == 404
    wrong = await agent.signed("POST", TABLE)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, PUT")
    assert (await agent.client.get("/nothing")).status_code == 404
    assert (await agent.client.post("/healthz")).status_code == 405


async def test_a_full_disk_is_told_and_the_old_table_runs_on(agent, tmp_path):
    await agent.push(a_table(4))
    tmp_path.joinpath("table.json").unlink()
    tmp_path.joinpath(".table.json.new").mkdir()  # so that writing fails, for root too
    answer = await agent.push(a_table(5))
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "not_stored")
    assert agent.fleet.table.epoch == 4


def local(method, peer):
    return Request(method=method, target=STATE, headers={}, body=b"", peer=peer)


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_stand_alone_this_machine_may_read(peer):
    LocalReading().check(local("GET", peer))
    LocalReading().check(local("POST", peer))


@pytest.mark.parametrize(
    ("method", "peer", "code"),
    [
        ("PUT", "127.0.0.1", "standalone"),
        ("GET", "10.0.0.7", "loopback_only"),
        ("GET", "fe80::1%eth0", "loopback_only"),
        ("GET", "", "loopback_only"),
    ],
)
def test_stand_alone_nobody_pushes_and_strangers_read_nothing(method, peer, code):
    with pytest.raises(SignatureRefused) as refused:
        LocalReading().check(local(method, peer))
    assert refused.value.code == code


def test_what_is_no_address_is_not_loopback():
    assert not is_loopback("localhost.evil.example")


class TestActions:
    @staticmethod
    def body():
        start = wire.StartEngine(replica="rpl-1", program="simulated", served_name="m", port=8400)
        action = wire.Action(id="rpl-1-2", serial=2, expires_at=2e9, do=start)
        return msgspec.json.encode(action)

    @staticmethod
    async def act(agent, body, **changes):
        headers = agent.control_plane.signature("POST", "/agent/v1/actions", body)
        return await agent.client.post("/agent/v1/actions", content=body, headers=headers | changes)

    async def test_a_signed_action_is_handed_on_and_answered(self, agent):
        taken = []

        async def obey(action):
            taken.append(action)
            return wire.ActionReceipt(outcome="accepted")

        agent.admin.obey = obey
        answer = await self.act(agent, self.body())
        assert answer.json() == {"kind": "action-receipt", "outcome": "accepted"}
        assert [a.do.replica for a in taken] == ["rpl-1"]

    async def test_an_unsigned_or_altered_one_is_not(self, agent):
        agent.admin.obey = None
        unsigned = await agent.client.post("/agent/v1/actions", content=self.body())
        assert unsigned.json()["error"]["code"] == "unsigned"
        headers = agent.control_plane.signature("POST", "/agent/v1/actions", self.body())
        other = self.body().replace(b"rpl-1", b"rpl-2")
        answer = await agent.client.post("/agent/v1/actions", content=other, headers=headers)
        assert answer.json()["error"]["code"] == "wrong_signature"

    async def test_an_agent_that_starts_no_engines_says_which_options_it_lacks(self, agent):
        answer = (await self.act(agent, self.body())).json()
        assert answer["outcome"] == "refused"
        assert "--engine-ports" in answer["detail"]

    async def test_what_is_no_action_is_refused_with_the_bad_field(self, agent):
        async def obey(action):
            raise AssertionError

        agent.admin.obey = obey
        answer = await self.act(agent, self.body().replace(b'"rpl-1"', b'"../x"'))
        assert answer.status_code == 400
        assert "do.replica" in answer.json()["error"]["message"]
