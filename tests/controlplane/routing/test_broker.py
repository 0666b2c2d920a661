"""A broker that is dead or frozen: nothing fails, and it costs a request tenths of a second."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.db import transaction
from django.urls import reverse

from controlplane import wake
from controlplane.domain.replica_states import State
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Node
from controlplane.routing import selectors, services
from tests.controlplane.calling import caller
from tests.controlplane.staff import signed_in
from tests.factories import WHY, make_node, make_pool, make_replica


def test_a_dead_broker_is_noticed_at_once_counted_and_then_left_alone(settings):
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    before, skipped = wake.broker_errors_total(), wake.health.skipped_total
    assert wake.wake("routing.publish") is False
    assert wake.broker_errors_total() == before + 1
    assert "refused" in wake.health.last_error
    assert wake.wake("routing.publish") is False
    assert wake.broker_errors_total() == before + 1
    assert wake.health.skipped_total == skipped + 1


def timed(call):
    """Give how long a call took, in seconds, and its result."""
    started = time.monotonic()
    result = call()
    return time.monotonic() - started, result


def patience_s(usual_s: float) -> float:
    """Give the longest a call may take without Redis, by how long this machine usually takes.

    Three waits of 0.2 s are what a dead broker and a dead recent store may cost; the ten-fold is
    for a busy machine, and far from the five seconds that kombu would go on trying.
    """
    return 3 * django_settings.REDIS_TIMEOUT_S + 10 * usual_s


def woken() -> bool:
    """Try the broker, whatever was found out about it before."""
    wake.health.open_until = 0.0
    return wake.wake("routing.publish")


@pytest.mark.redis
class TestRealRedis:
    def test_a_frozen_broker_costs_a_moment_once(self, redis_server):
        assert any(woken() for _ in range(20))  # a busy machine may miss the limit of 0.2 s
        redis_server.freeze()
        first_s, woke = timed(lambda: wake.wake("routing.publish"))
        assert woke is False
        again_s, woke = timed(lambda: wake.wake("routing.publish"))
        assert woke is False
        assert again_s < first_s  # the circuit is open: it is not even tried
        redis_server.thaw()
        assert any(woken() for _ in range(20))  # a busy machine may miss the limit of 0.2 s

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
    def test_changes_and_reports_go_on_without_redis(self, redis_server, fake_agent, fault):
        make_pool()
        fake = fake_agent()
        operator = caller("operator")
        replica = {"pool": "chat", "url": "http://10.0.0.1:9001"}
        usual_s, _ = timed(lambda: operator.post("/api/v1/replicas/", replica, format="json"))
        os.kill(redis_server.process.pid, fault)
        replica["url"] = "http://10.0.0.1:9002"
        took_s, answer = timed(lambda: operator.post("/api/v1/replicas/", replica, format="json"))
        assert took_s < patience_s(usual_s)
        assert answer.status_code == 201
        took_s, reply = timed(lambda: services.book_report(report=fake.report(), token=fake.token))
        assert took_s < patience_s(usual_s)
        assert reply.lineage == selectors.publication().lineage
        assert services.publish_if_behind() == 1
        assert services.table_for_agent(token=fake.token).epoch == 1

    @pytest.mark.django_db(transaction=True)
    def test_a_drain_by_console_is_answered_at_once_with_redis_frozen(self, redis_server):
        pool = make_pool()
        warm, drained = make_replica(pool), make_replica(pool)
        console = signed_in("operator")
        usual_s, _ = timed(lambda: console.post(reverse("drain", args=[warm.public_id])))
        redis_server.freeze()
        took_s, answer = timed(lambda: console.post(reverse("drain", args=[drained.public_id])))
        assert took_s < patience_s(usual_s)
        redis_server.thaw()
        assert answer.status_code == 302
        drained.refresh_from_db()
        assert drained.state == State.DRAINING


@pytest.mark.django_db(transaction=True)
def test_a_task_is_woken_after_the_commit_and_not_by_a_rollback(settings):
    settings.CELERY_BROKER_URL = "memory://"
    node = make_node()
    sent = wake.health.sent_total
    with transaction.atomic():
        fleet.update_node(name=node.name, zone="b", **WHY)
        assert wake.health.sent_total == sent
    assert wake.health.sent_total == sent + 1
    try:
        with transaction.atomic():
            fleet.update_node(name=node.name, zone="c", **WHY)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert wake.health.sent_total == sent + 1
    assert Node.objects.get().zone == "b"


def test_every_change_wakes_its_task_on_commit_and_nobody_sends_one_otherwise():
    """Else a worker that is quicker than the commit would not find what it is woken for."""
    sent = re.compile(r"\.delay\(|apply_async\(|send_task\(|(?<!on_commit\()\bwaker\(|\bwake\(")
    root = Path(wake.__file__).parent
    files = [f for f in root.rglob("*.py") if f.name != "wake.py" and "migrations" not in f.parts]
    found = {str(f.relative_to(root)) for f in files if sent.search(f.read_text())}
    # The publisher tells agents of a table that it has committed.
    assert found == {"routing/services/loops.py"}
