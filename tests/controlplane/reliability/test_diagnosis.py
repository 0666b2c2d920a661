"""Diagnosis over a real store: what was planted in a pool's telemetry is named."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.domain.errors import Invalid, NotFound
from controlplane.domain.replica_states import State
from controlplane.fleet import services as fleet
from controlplane.reliability.selectors import diagnosis
from routing_agent import wire
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.reliability.test_alerts import bucket
from tests.controlplane.reliability.test_api import alert
from tests.factories import WHY, make_pool, make_replica

pytestmark = [pytest.mark.redis, pytest.mark.django_db]
USUAL = {
    "requests": {"200": 60},
    "prompt_tokens": 60 * 800,
    "cached_prompt_tokens": 60 * 500,
    "output_tokens": 6000,
    "queue_wait": {bucket(0.01): 60},
    "tpot": {bucket(0.02): 60},
}
QUEUE = {"queue_wait": {bucket(3.0): 60}}


@pytest.fixture(autouse=True)
def pool(telling, minute):
    made = make_pool("chat")
    for name in ("rpl-a", "rpl-b", "rpl-c"):
        make_replica(made, public_id=name)
    for n in range(10, 40):  # half an hour as usual, before the trouble
        minute(
            at=timezone.now() - timedelta(minutes=n),
            statuses={"200": 60},
            prompt_tokens=60 * 800,
            cached_tokens=60 * 500,
            output_tokens=6000,
            queue_wait={bucket(0.01): 60},
            tpot={bucket(0.02): 60},
            load_s=60,
            running_s=240,
        )
    return made


def engines(requests: dict[str, int], running: dict[str, int]) -> tuple[wire.ReplicaReport, ...]:
    return tuple(
        wire.ReplicaReport(
            replica=name,
            pool="chat",
            requests_total=n,
            engine_running=running[name],
            engine_waiting=0,
            process_started_at=1.0,
        )
        for name, n in requests.items()
    )


FAIR = {"rpl-a": 2, "rpl-b": 2, "rpl-c": 2}


def told(telling, *, done=None, running=FAIR, **changes) -> None:
    """Tell of one minute in steps of five seconds: sixty requests, one a second."""
    now, whole = timezone.now().timestamp(), USUAL | changes
    ended = done or dict.fromkeys(FAIR, 24)
    for step in range(13):
        replicas = engines({name: n * step // 12 for name, n in ended.items()}, running)
        part = {name: _twelfth(value) for name, value in whole.items()} if step else {}
        telling.tell(at=now - 60 + 5 * step, replicas=replicas, **part)


def _twelfth(value):
    if isinstance(value, dict):
        return {key: n // 12 for key, n in value.items()}
    return value // 12


def cause() -> str:
    return diagnosis.diagnose("chat", "ttft").diagnosis.cause_step


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ({}, ""),
        ({"prompt_tokens": 60 * 4000, **QUEUE}, "inputs"),
        (QUEUE, "queue"),
        ({"cached_prompt_tokens": 60 * 20, **QUEUE}, "hit-rate"),
        ({"tpot": {bucket(0.1): 60}, **QUEUE}, "speed"),
    ],
    ids=["nothing", "longer inputs", "a queue", "colder caches", "slower engines"],
)
def test_a_planted_cause_is_named(telling, planted, named):
    told(telling, **planted)
    assert cause() == named


def test_a_slow_replica_is_named_with_its_figures(telling):
    told(
        telling,
        done={"rpl-a": 48, "rpl-b": 12, "rpl-c": 48},
        running={"rpl-a": 1, "rpl-b": 9, "rpl-c": 1},
        **QUEUE,
    )
    found = diagnosis.diagnose("chat", "ttft").diagnosis
    assert found.cause_step == "slow-replica"
    assert "Replica rpl-b is slow" in found.cause


def test_lost_replicas_are_named(telling, pool):
    pool.replicas.filter(public_id="rpl-a").update(state=State.FAILED)
    told(telling, **QUEUE)
    assert cause() == "lost-replicas"


def test_the_columns_say_what_they_are_of_and_what_changed(telling):
    told(telling, **QUEUE)
    fleet.update_pool(slug="chat", description="now with more", **WHY)
    found = diagnosis.diagnose("chat", "ttft")
    assert found.before_is.startswith("the hour before ")
    assert "(30 min known)" in found.before_is
    assert [e.verb for e in found.changes] == ["pool.update"]


def test_an_alert_sets_since_when(telling):
    made = alert(since=timezone.now() - timedelta(days=1))
    found = diagnosis.diagnose("chat", "ttft", made.pk)
    assert found.since == made.since
    assert "nothing is known of the hour" in found.before_is
    other = alert(rule="kv-high", pool="other", subject="other")
    with pytest.raises(Invalid):
        diagnosis.diagnose("chat", "ttft", other.pk)
    with pytest.raises(NotFound):
        diagnosis.diagnose("chat", "ttft", 9999)


def test_without_minutes_the_day_before_is_the_baseline(telling, minute):
    since = timezone.now() - timedelta(days=2)
    hour = since.replace(minute=0) - timedelta(days=1)
    minute(at=hour, step=3600, statuses={"200": 3600}, prompt_tokens=3600 * 100)
    found = diagnosis.diagnose("chat", "ttft", alert(since=since).pk)
    assert found.before_is.startswith("the same hour of the day before")


def test_the_api_tells_the_same_and_refuses_other_questions(telling):
    told(telling, prompt_tokens=60 * 4000)
    client = caller("viewer")
    body = ok(client.get("/api/v1/diagnoses/chat/"))
    assert (body["cause_step"], body["steps"][0]["verdict"]) == ("inputs", "yes")
    assert body["steps"][0]["now"] == "4,000 tokens"
    for path in ("?question=why", "?alert=x", "?alert=-1"):
        problem(client.get(f"/api/v1/diagnoses/chat/{path}"), 400, "invalid")
    problem(client.get("/api/v1/diagnoses/none/"), 404, "not_found")
    problem(client.get("/api/v1/diagnoses/chat/?alert=9"), 404, "not_found")
