"""Webhooks: signed, tried again until they arrive, silenced, and careful about where they go."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import time_machine
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.domain.alerts import ATTEMPTS_AT_MOST, State
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.reliability import outbound, services
from controlplane.reliability.models import Alert, WebhookDelivery
from controlplane.reliability.services import messages
from tests.factories import WHY, make_pool

pytestmark = [pytest.mark.one_database, pytest.mark.django_db]


class Receiver:
    """A real HTTP server that keeps what it gets and answers what it is told to."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.status)
                if 300 <= receiver.status < 400:
                    self.send_header("Location", f"{receiver.url}/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


def hook(receiver: Receiver, name: str = "ops", **given):
    return services.create_webhook(name=name, url=f"{receiver.url}/in?token=hidden", **given, **WHY)


def firing(pool: str = "chat", **given) -> Alert:
    now = timezone.now()
    return Alert.objects.create(
        **(
            {
                "rule": "ttft-high",
                "subject": pool,
                "pool": pool,
                "severity": "critical",
                "state": State.FIRING,
                "since": now,
                "fired_at": now,
                "value": 8.9,
                "threshold": 2.0,
                "reason": "8.90 s, over the limit",
            }
            | given
        )
    )


def end(alert: Alert) -> None:
    rows = Alert.objects.filter(pk=alert.pk)
    rows.update(state=State.RESOLVED, resolved_at=timezone.now())


def queue() -> int:
    return messages.queue_due(timezone.now())


def delivery() -> WebhookDelivery:
    return WebhookDelivery.objects.latest("id")


def test_an_alert_is_told_once_signed_and_its_end_too(receiver):
    made = hook(receiver)
    alert = firing()
    assert (queue(), queue()) == (1, 0)
    services.deliver_messages()
    (headers, body) = receiver.got[0]
    assert json.loads(body)["event"] == "firing"
    assert json.loads(body)["alert"]["reason"] == "8.90 s, over the limit"
    at, told = (part.split("=", 1)[1] for part in headers[outbound.SIGNATURE_HEADER].split(","))
    wanted = hmac.new(made.plaintext.encode(), f"{at}.".encode() + body, hashlib.sha256)
    assert hmac.compare_digest(told, wanted.hexdigest())
    end(alert)
    assert (queue(), queue()) == (1, 0)
    services.deliver_messages()
    assert json.loads(receiver.got[1][1])["event"] == "resolved"
    assert delivery().outcome == "delivered"


def test_a_message_is_tried_again_until_it_arrives_with_the_same_id(receiver):
    hook(receiver)
    firing()
    queue()
    receiver.status = 503
    services.deliver_messages()
    failed = delivery()
    assert (failed.outcome, failed.attempts, failed.last_status) == ("waiting", 1, 503)
    assert "answered 503" in failed.last_error
    services.deliver_messages()
    assert len(receiver.got) == 1  # its pause is not over
    receiver.status = 204
    with time_machine.travel(timezone.now() + timedelta(seconds=11)):
        services.deliver_messages()
    assert delivery().outcome == "delivered"
    ids = {headers["x-signalbox-message"] for headers, _ in receiver.got}
    assert len(ids) == 1


def test_a_receiver_that_never_answers_well_is_given_up(receiver):
    hook(receiver)
    firing()
    queue()
    receiver.status = 302  # redirects are not followed
    WebhookDelivery.objects.update(attempts=ATTEMPTS_AT_MOST - 1)
    services.deliver_messages()
    assert delivery().outcome == "failed"
    assert "given up after 12 attempts" in delivery().last_error
    assert len(receiver.got) == 1


def test_nobody_there_is_told_without_the_address(receiver, caplog):
    services.create_webhook(name="gone", url="http://127.0.0.1:1/secret-path", **WHY)
    firing()
    queue()
    services.deliver_messages()
    assert "ConnectionRefusedError" in delivery().last_error
    assert "secret-path" not in delivery().last_error + caplog.text


def test_a_silenced_alert_is_told_when_the_silence_ends_and_it_still_fires(receiver):
    make_pool("chat")
    hook(receiver)
    silence = services.create_silence(
        rule="ttft-high", pool="chat", ends_at=timezone.now() + timedelta(hours=1), **WHY
    )
    firing()
    firing("other")
    assert queue() == 1
    services.end_silence(pk=silence.pk, **WHY)
    assert queue() == 1
    with pytest.raises(Invalid):
        services.end_silence(pk=silence.pk, **WHY)
    with pytest.raises(NotFound):
        services.end_silence(pk=999, **WHY)
    assert set(AuditEvent.objects.values_list("verb", flat=True)) >= {
        "silence.create", "silence.end", "webhook.create",
    }  # fmt: skip


def test_an_alert_that_was_silenced_all_its_life_is_never_told(receiver):
    make_pool("chat")
    hook(receiver)
    services.create_silence(pool="chat", ends_at=timezone.now() + timedelta(hours=1), **WHY)
    end(firing())
    assert queue() == 0


def test_a_webhook_is_told_only_what_it_wants(receiver):
    make_pool("chat")
    hook(receiver, "all")
    hook(receiver, "chat-only", pool="chat")
    hook(receiver, "critical-only", only_critical=True)
    hook(receiver, "off", enabled=False)
    firing("other", severity="warning")
    queue()
    assert {d.webhook.name for d in WebhookDelivery.objects.all()} == {"all"}
    firing("chat", rule="kv-high", severity="critical")
    queue()
    assert WebhookDelivery.objects.count() == 4


def test_a_test_message_shows_whether_the_webhook_works(receiver):
    hook(receiver)
    services.test_webhook(name="ops", **WHY)
    services.deliver_messages()
    assert json.loads(receiver.got[0][1])["event"] == "test"
    services.update_webhook(name="ops", enabled=False, **WHY)
    with pytest.raises(Conflict):
        services.test_webhook(name="ops", **WHY)


def test_a_message_of_a_webhook_that_was_switched_off_is_given_up(receiver):
    hook(receiver)
    firing()
    queue()
    services.update_webhook(name="ops", enabled=False, **WHY)
    services.deliver_messages()
    assert delivery().outcome == "failed"
    assert receiver.got == []


def test_one_message_is_sent_by_one_worker(receiver):
    hook(receiver)
    firing()
    queue()
    stale = delivery()
    services.deliver_messages()
    from controlplane.reliability.services.deliveries import _claim

    assert not _claim(stale)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://host/x",
        "ftp://host/x",
        "//host/x",
        "http://",
        "http://user:pw@host/",
        "http://host:99999/",
        "http://host:0/",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::1]/",
        "http://[fd00:ec2::254]/",
        "http://168.63.129.16/",
        "http://0.0.0.0/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://host/a b",
        "http://höst/",
        "http://host/\r\nx: y",
        "http://[bad/",
        "",
    ],
)
def test_addresses_that_messages_must_not_go_to_are_refused(url):
    with pytest.raises(Invalid):
        services.create_webhook(name="bad", url=url, **WHY)


def test_a_name_that_leads_to_a_forbidden_address_is_not_called(monkeypatch):
    told = [(2, 1, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(outbound.socket, "getaddrinfo", lambda *a, **k: told)
    message = outbound.Message("msg-1", b"{}", "s", 1)
    with pytest.raises(outbound.NotDelivered, match="do not go to"):
        outbound.send("http://innocent.example/", message)


def test_who_answers_byte_by_byte_is_cut_off(monkeypatch):
    """Each byte comes within a read's own limit; all of them together do not."""
    monkeypatch.setattr(outbound, "LIMIT_S", 0.2)
    enough = threading.Event()

    def drip(server: socket.socket) -> None:
        caller, _ = server.accept()
        with caller, suppress(OSError):
            caller.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while not enough.wait(0.02):
                caller.sendall(b"y")

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip, args=[server])
        dripping.start()
        try:
            with pytest.raises(outbound.NotDelivered, match="no answer within"):
                outbound.send(
                    f"http://127.0.0.1:{server.getsockname()[1]}/",
                    outbound.Message("msg-1", b"{}", "s", 1),
                )
        finally:
            enough.set()
            dripping.join()


def test_address_and_secret_are_in_no_audit_event(receiver):
    made = hook(receiver)
    services.update_webhook(name="ops", url=f"{receiver.url}/other?token=hidden", **WHY)
    services.delete_webhook(name="ops", **WHY)
    said = json.dumps([[e.before, e.after] for e in AuditEvent.objects.all()])
    assert "hidden" not in said
    assert made.plaintext not in said
    assert made.plaintext not in repr(made)
    with pytest.raises(NotFound):
        services.delete_webhook(name="ops", **WHY)


def test_two_webhooks_cannot_have_one_name_and_a_pool_must_exist(receiver):
    hook(receiver)
    with pytest.raises(Conflict):
        hook(receiver)
    with pytest.raises(Invalid):
        hook(receiver, "second", pool="none")
