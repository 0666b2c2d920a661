"""A broker that is dead or frozen: nothing fails, and it costs a request tenths of a second."""

from __future__ import annotations

import os
import signal
import time

import pytest
from django.db import transaction

from controlplane import wake
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Node
from controlplane.routing import selectors, services
from tests.controlplane.calling import caller
from tests.factories import WHY, make_node, make_pool


def test_a_dead_broker_is_noticed_at_once_counted_and_then_left_alone(settings):
    settings.CELERY_BROKER_URL = "redis://127.0.0.1:1/0"
    before, skipped = wake.broker_errors_total(), wake.health.skipped_total
    assert wake.wake("routing.publish") is False
    assert wake.broker_errors_total() == before + 1
    assert "refused" in wake.health.last_error
    assert wake.wake("routing.publish") is False
    assert wake.broker_errors_total() == before + 1
    assert wake.health.skipped_total == skipped + 1


@pytest.mark.redis
class TestRealRedis:
    def test_a_frozen_broker_costs_less_than_a_second_once(self, redis_server, settings):
        assert wake.wake("routing.publish") is True
        redis_server.freeze()
        started = time.monotonic()
        assert wake.wake("routing.publish") is False
        assert time.monotonic() - started < 1.0
        started = time.monotonic()
        assert wake.wake("routing.publish") is False
        assert time.monotonic() - started < settings.REDIS_TIMEOUT_S
        redis_server.thaw()
        wake.health.open_until = 0.0
        assert wake.wake("routing.publish") is True

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL])
    def test_changes_and_reports_go_on_without_redis(self, redis_server, fake_agent, fault):
        make_pool()
        fake = fake_agent()
        operator = caller("operator")
        replica = {"pool": "chat", "url": "http://10.0.0.1:9001"}
        operator.post("/api/v1/replicas/", replica, format="json")  # all code is loaded by now
        os.kill(redis_server.process.pid, fault)
        started = time.monotonic()
        replica["url"] = "http://10.0.0.1:9002"
        answer = operator.post("/api/v1/replicas/", replica, format="json")
        assert time.monotonic() - started < 1.0
        assert answer.status_code == 201
        started = time.monotonic()
        reply = services.book_report(report=fake.report(), token=fake.token)
        assert time.monotonic() - started < 1.0
        assert reply.lineage == selectors.publication().lineage
        assert services.publish_if_behind() == 1
        assert services.table_for_agent(token=fake.token).epoch == 1


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
