"""What agents call: registration with a one-time token, reports, the pull of a signed table."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from django.test import Client
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.domain.errors import Invalid, Unauthorized
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent, Node, RegistrationToken
from controlplane.routing import selectors, services
from controlplane.routing.models import Delivery
from controlplane.telemetry import recent
from routing_agent import wire
from tests.controlplane.routing.conftest import deliver_all, register
from tests.factories import WHY, make_node, make_pool
from tests.fakes.agent import FakeAgent

pytestmark = pytest.mark.django_db


def post(path: str, message, token: str = "") -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    response = Client(enforce_csrf_checks=True).post(
        f"/api/v1/agent/{path}",
        message if isinstance(message, bytes) else msgspec.json.encode(message),
        content_type="application/json",
        headers=headers,
    )
    return response.status_code, response.content


class TestRegistration:
    def request(self, token: str, **given) -> wire.RegisterRequest:
        defaults = {
            "name": "node-1",
            "traffic_url": "http://127.0.0.1:8101",
            "admin_url": "http://127.0.0.1:8201",
        }
        return wire.RegisterRequest(token=token, **(defaults | given))

    def token(self) -> str:
        make_node("node-1")
        return fleet.issue_registration_token(node="node-1", **WHY)[1]

    def test_a_token_works_once(self):
        token = self.token()
        status, body = post("register", self.request(token))
        assert status == 200
        reply = msgspec.json.decode(body, type=wire.RegisterReply)
        assert reply.lineage == selectors.publication().lineage
        assert services.authenticate(reply.agent_token).public_id == reply.agent
        status, body = post("register", self.request(token))
        assert status == 401
        assert msgspec.json.decode(body)["error"]["code"] == "token_used"

    def test_tokens_are_stored_as_hashes_only(self):
        token = self.token()
        status, body = post("register", self.request(token))
        assert status == 200
        agent_token = msgspec.json.decode(body)["agent_token"]
        rows = [*Agent.objects.values(), *RegistrationToken.objects.values()]
        assert token not in str(rows)
        assert agent_token not in str(rows)
        assert agent_token not in str(list(AuditEvent.objects.values()))

    def test_an_unknown_or_expired_token_is_refused(self):
        token = self.token()
        RegistrationToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
        for given in (token, "nonsense"):
            with pytest.raises(Unauthorized):
                services.register_agent(request=self.request(given))

    def test_a_wrong_name_or_address_leaves_the_token_unused(self):
        token = self.token()
        for wrong in ({"name": "node-2"}, {"admin_url": "http://::1:1"}):
            with pytest.raises(Invalid):
                services.register_agent(request=self.request(token, **wrong))
        assert services.register_agent(request=self.request(token)).agent

    def test_registering_again_keeps_the_agent_and_changes_its_token(self):
        first = services.register_agent(request=self.request(self.token()))
        _, token = fleet.issue_registration_token(node="node-1", **WHY)
        again = services.register_agent(request=self.request(token))
        assert again.agent == first.agent
        with pytest.raises(Unauthorized):
            services.authenticate(first.agent_token)

    @pytest.mark.parametrize("body", [b"", b"{bad", b"[]", b'{"kind":"report"}', b'"x"', b"\xff"])
    def test_a_malformed_message_is_400_with_the_reason(self, body):
        status, told = post("register", body)
        assert status == 400
        assert msgspec.json.decode(told)["error"]["code"] == "malformed"

    def test_only_its_method_is_answered(self):
        response = Client().get("/api/v1/agent/register")
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")


class TestReports:
    @pytest.fixture
    def fake(self, fake_agent) -> FakeAgent:
        return fake_agent()

    def book(self, fake: FakeAgent, **given) -> wire.ReportReply:
        return services.book_report(report=fake.report(**given), token=fake.token)

    def test_a_report_makes_the_agent_live_and_tells_the_newest_epoch(self, fake):
        make_pool()
        services.republish(**WHY)
        status, body = post("report", fake.report(), fake.token)
        assert status == 200
        reply = msgspec.json.decode(body, type=wire.ReportReply)
        assert (reply.epoch, reply.lineage) == (1, selectors.publication().lineage)
        assert [a.public_id for a in selectors.live_agents(now=timezone.now())] == [fake.agent]

    def test_a_wrong_token_or_another_agents_report_is_401(self, fake, fake_agent):
        other = fake_agent("node-2")
        for report, token in ((fake.report(), "x"), (fake.report(), other.token)):
            assert post("report", report, token)[0] == 401
        assert post("report", fake.report())[0] == 401

    def test_an_unchanged_agent_is_written_only_every_few_seconds(
        self, fake, django_assert_num_queries
    ):
        make_pool()
        services.republish(**WHY)
        deliver_all(fake)
        self.book(fake)
        with django_assert_num_queries(4) as told:
            self.book(fake)
        assert not [q for q in told.captured_queries if q["sql"].startswith("UPDATE")]
        old = timezone.now() - timedelta(seconds=5)
        Agent.objects.update(last_seen_at=old)
        self.book(fake)
        assert Agent.objects.get().last_seen_at > old

    def test_an_overtaken_report_changes_nothing(self, fake):
        self.book(fake, draining=False)
        late = fake.report(draining=False)
        self.book(fake, draining=True)
        services.book_report(report=late, token=fake.token)
        assert Agent.objects.get().draining is True

    def test_the_same_number_again_brings_the_fresh_state_it_carries(self, fake):
        self.book(fake)
        self.book(fake, same=True, draining=True)
        assert Agent.objects.get().draining is True

    @pytest.mark.parametrize("skew_s", [600.0, -600.0, 3600.0, -1e9, 1e300])
    def test_the_agents_clock_does_not_matter(self, fake, skew_s):
        self.book(fake, sent_at=1e9 + skew_s, started_at=1e9 + skew_s)
        self.book(fake, sent_at=1e9 - skew_s, started_at=1e9 + skew_s)
        assert selectors.is_live(Agent.objects.get(), now=timezone.now())

    def test_a_restarted_agent_may_count_from_one_again(self, fake):
        self.book(fake, number=500)
        fake.started_at += 60
        self.book(fake, number=1, draining=True)
        assert Agent.objects.get().draining is True

    def test_an_agent_that_pulled_closes_its_delivery(self, fake):
        make_pool()
        services.republish(**WHY)
        fake.table = msgspec.json.decode(
            bytes(services.table_for_agent(token=fake.token).table), type=wire.RoutingTable
        )
        self.book(fake, table_source="pull")
        row = Delivery.objects.get()
        assert (row.outcome, row.source) == ("applied", "pull")
        assert selectors.observed(selectors.fleet_revision()).complete

    def test_what_an_agent_sees_of_its_machine_is_kept_without_live_readings(self, fake):
        Node.objects.update(gpus=[{"index": 0, "model": "declared"}], hostname="declared")
        gpu = wire.Gpu(index=0, model="A100", memory_bytes=80, utilization_ratio=0.5)
        self.book(fake, node=wire.NodeFacts(driver_version="570.1", gpus=(gpu,)))
        node = Node.objects.get()
        assert node.gpus == [{"index": 0, "model": "A100", "memory_bytes": 80}]
        assert (node.driver_version, node.hostname) == ("570.1", "declared")

    def test_placements_are_handed_on_where_an_agent_tells_its_own(self, fake, monkeypatch):
        others = (wire.AgentPlaced(agent="agt-2", number=3),)
        told = []
        monkeypatch.setattr(
            recent, "book", lambda report, now: told.append((report.placed, report.peer))
        )
        monkeypatch.setattr(recent, "exchange", lambda report, now: others)
        assert self.book(fake).others == ()
        peer = wire.PeerAddress(host="node-1", port=9001, key=b"k" * 32)
        assert self.book(fake, placed=(), peer=peer).others == others
        assert told == [(None, None)] * 2, "the newest report is kept without them and its key"

        def failing(report, now):
            raise RuntimeError("no store")

        monkeypatch.setattr(recent, "exchange", failing)
        assert self.book(fake, placed=()).others == ()

    def test_a_failing_recent_store_never_costs_the_answer(self, fake, caplog):
        class Broken:
            def book(self, report, now):
                raise ZeroDivisionError

        recent._store = Broken()
        assert self.book(fake).lineage
        assert "report_not_kept" in caplog.text

    def test_a_large_report_of_a_long_outage_is_taken(self, fake):
        usage = tuple(
            wire.UsageRecord(number=n, at=1e9, request_id="r" * 200, tenant="acme")
            for n in range(1, 12_001)
        )
        report = fake.report(usage=usage)
        assert len(msgspec.json.encode(report)) > 2_621_440  # Django's own limit
        assert post("report", report, fake.token)[0] == 200


class TestPull:
    def test_a_pull_gives_the_signed_table_to_an_agent_only(self, fake_agent):
        make_pool()
        fake = fake_agent()
        client = Client()
        path = "/api/v1/agent/table"
        assert client.get(path).status_code == 401
        headers = {"Authorization": f"Bearer {fake.token}"}
        assert client.get(path, headers=headers).status_code == 503
        services.republish(**WHY)
        response = client.get(path, headers=headers)
        assert response.status_code == 200
        assert fake.check("GET", path, response.content, response.headers) == ""
        assert fake.check("GET", path, response.content, response.headers) == "replayed"
        assert fake.check("GET", path, response.content + b" ", response.headers) != ""
        assert fake.receive(response.content).outcome == "applied"

    def test_a_table_is_complete_and_its_credentials_reach_agents_only(self, fake_agent):
        make_pool()
        fake = fake_agent()
        fleet.register_replica(pool="chat", url="http://10.0.0.1:1", credential="s3cret", **WHY)
        services.publish_if_behind()
        assert b"s3cret" in bytes(services.table_for_agent(token=fake.token).table)
        assert "s3cret" not in str(list(AuditEvent.objects.values()))

    def test_registering_with_a_new_token_ends_the_old_ones_pulls(self, fake_agent):
        fake = fake_agent()
        old = fake.token
        register(fake)
        with pytest.raises(Unauthorized):
            services.table_for_agent(token=old)
