"""Alerts over a real store: they begin, fire, are acknowledged and end; nothing is made up."""

from __future__ import annotations

from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.domain import latency
from controlplane.domain.alerts import State
from controlplane.domain.errors import Conflict, Invalid, NotFound
from controlplane.domain.replica_states import State as Life
from controlplane.reliability import selectors, services
from controlplane.reliability.models import Alert, AlertRun
from controlplane.reliability.selectors import readings
from controlplane.reliability.services import alerts
from controlplane.routing.models import LoopRun
from routing_agent import wire
from routing_agent.wire import LATENCY_BOUNDS_S
from tests.controlplane.staff import signed_in
from tests.factories import WHY, make_agent, make_pool, make_replica

pytestmark = [pytest.mark.redis, pytest.mark.django_db]


def bucket(seconds: float) -> int:
    return next(i for i, bound in enumerate(LATENCY_BOUNDS_S) if bound >= seconds)


SLOW = {bucket(8.9): 100}


@pytest.fixture
def pool(telling):
    made = make_pool("chat")
    make_replica(made, public_id="rpl-a")
    return made


@pytest.fixture
def judge(telling):
    return telling.judge


def states() -> dict[str, str]:
    return dict(Alert.objects.values_list("rule", "state"))


def seen(rule: str, subject: str = "chat"):
    found = readings.readings(readings.look(timezone.now()))[rule]
    return next((r for r in found if r.subject == subject), None)


def test_a_slow_pool_is_pending_then_fires_and_says_why(pool, telling, judge):
    telling.tell(requests={"200": 100}, ttft=SLOW)
    judge()
    assert states()["ttft-high"] == State.PENDING
    assert judge(61).startswith("1 alert firing")
    alert = Alert.objects.get(rule="ttft-high")
    assert alert.state == State.FIRING
    assert alert.subject == alert.pool == "chat"
    assert "over the limit of 2 s. TTFT P99 of " in alert.reason
    assert AuditEvent.objects.get(verb="alert.fire").target == "ttft-high chat"


def test_a_promise_of_the_pool_is_what_the_alert_goes_by(pool, telling, judge):
    telling.tell(requests={"200": 100}, ttft={bucket(1.0): 100})
    judge()
    judge(121)
    assert states() == {"ttft-over-slo": State.FIRING}
    services.set_slo(pool="chat", ttft_p99_s=2.0, **WHY)
    judge(130)
    judge(200)
    assert states() == {"ttft-over-slo": State.RESOLVED}


def test_without_a_store_nothing_fires_and_what_fires_goes_on(pool, telling, settings, judge):
    telling.tell(requests={"200": 100}, ttft=SLOW)
    judge()
    judge(61)
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    services.judge_alerts(timezone.now() + timedelta(seconds=70))
    services.judge_alerts(timezone.now() + timedelta(seconds=7000))
    alert = Alert.objects.get(rule="ttft-high")
    assert alert.state == State.FIRING
    assert alert.no_data_since is not None
    assert "Redis does not answer" in alert.reason
    told = AlertRun.objects.get().rules["ttft-high"]
    assert told["no_data"] == 1
    assert any("Redis" in why for why in told["missing"])


def test_an_alert_on_latency_ends_when_its_pool_is_idle_for_long(pool, telling, judge):
    telling.tell(requests={"200": 100}, ttft=SLOW)
    judge()
    judge(61)
    telling.last = {"pool": "chat", "requests": {}}
    judge(300)
    alert = Alert.objects.get(rule="ttft-high")
    assert (alert.state, bool(alert.no_data_since)) == (State.FIRING, True)
    judge(300 + 901)
    alert.refresh_from_db()
    assert alert.state == State.RESOLVED
    assert "next to no requests for 15 min" in alert.reason


def test_an_idle_pool_has_no_percentile_and_no_alert(pool, telling, judge):
    telling.tell(requests={}, replicas=(wire.ReplicaReport(replica="rpl-a", pool="chat"),))
    judge()
    assert "too few for a percentile" in seen("ttft-high").missing
    assert "ttft-high" not in states()


def test_old_peaks_are_no_present_load(pool, telling):
    now = timezone.now().timestamp()
    telling.tell(requests={"200": 100}, ttft=SLOW, at=now - 300)
    telling.tell(requests={"200": 100}, ttft={bucket(0.01): 100})
    assert seen("ttft-high").value < 0.02


@pytest.mark.parametrize(
    ("delta", "rule", "value"),
    [
        ({"requests": {"200": 97, "503": 3}}, "errors-high", 0.03),
        ({"requests": {"200": 100}, "tpot": {bucket(0.2): 100}}, "tpot-over-slo", 0.2),
    ],
)
def test_each_figure_of_a_pool_has_its_rule(pool, telling, delta, rule, value):
    telling.tell(**delta)
    assert seen(rule).value == pytest.approx(value, rel=0.06)


def test_engines_tell_of_queue_kv_cache_and_preemptions(pool, telling):
    def told(preemptions: int, waiting: int) -> wire.ReplicaReport:
        return wire.ReplicaReport(
            replica="rpl-a",
            pool="chat",
            engine_waiting=waiting,
            kv_usage=0.91,
            preemptions_total=preemptions,
            process_started_at=1.0,
        )

    telling.tell(replicas=(told(10, 130),))
    telling.tell(requests={"200": 1}, replicas=(told(16, 140),))
    assert seen("queue-long").value == 140
    assert seen("kv-high").value == 0.91
    assert seen("preemptions").value > 1


def test_what_waits_in_an_agents_own_queue_counts_where_it_tells(pool, telling):
    telling.tell(requests={"200": 1}, waiting=(wire.PoolWaiting(pool="chat", requests=7),))
    assert seen("queue-long").value == 7
    telling.tell(requests={"200": 1}, waiting=())
    assert seen("queue-long").value == 0


def test_all_samples_beyond_the_last_bound_are_a_breach(pool, telling):
    telling.tell(requests={"200": 100}, ttft={latency.OVERFLOW: 100})
    assert seen("ttft-high").value == LATENCY_BOUNDS_S[-1]


def test_figures_that_no_engine_tells_are_missing_not_zero(pool, telling):
    telling.tell(requests={"200": 50})
    for rule in ("queue-long", "kv-high", "preemptions", "gpu-low", "throughput-down", "burn-fast"):
        found = seen(rule)
        assert found.value is None, rule
        assert found.missing, rule


def test_gpus_and_throughput_are_read_from_five_minutes_of_roll_ups(pool, telling, minute):
    now = timezone.now()
    for n in range(2, 7):
        minute(
            at=now - timedelta(minutes=n),
            output_tokens=6000,
            gpu_s=60,
            utilization_s=6.0,
            statuses={"200": 60},
        )
    for day in (1, 2):
        hour = now.replace(minute=0) - timedelta(days=day)
        minute(at=hour, step=3600, output_tokens=3600 * 200, statuses={"200": 3600})
    assert seen("gpu-low").value == pytest.approx(0.1)
    found = seen("throughput-down")
    assert found.value == pytest.approx(0.5)
    assert "200 are usual at this hour (median of 2 days)" in found.text
    assert found.age_s < 130


def test_a_replica_that_is_down_fires_and_one_an_operator_took_out_does_not(pool, telling, judge):
    make_replica(pool, public_id="rpl-b", state=Life.EJECTED, state_reason="probe timed out")
    make_replica(pool, public_id="rpl-c", state=Life.EJECTED, ejected_by_operator=True)
    make_replica(pool, public_id="rpl-d", state=Life.STOPPED)
    judge()
    judge(11)
    alert = Alert.objects.get(rule="replica-down")
    assert (alert.subject, alert.pool, alert.state) == ("rpl-b", "chat", State.FIRING)
    assert "probe timed out" in alert.reason


def test_a_replica_that_answers_probes_and_fails_requests_fires_and_is_seen(pool, telling, judge):
    sick, fit = make_replica(pool), make_replica(pool)
    make_replica(pool)  # no agent tells of it: no data
    telling.tell(
        replicas=(
            wire.ReplicaReport(replica=sick.public_id, pool="chat", breaker="half_open"),
            wire.ReplicaReport(replica=fit.public_id, pool="chat"),
        )
    )
    judge()
    judge(61)
    alert = Alert.objects.get(rule="replica-failing")
    assert (alert.subject, alert.state) == (sick.public_id, State.FIRING)
    assert "breaker is open on 1 of 1 agent" in alert.reason
    troubles = selectors.troubles()["chat"]
    assert [t.text for t in troubles] == ["Replica fails what it is sent."]
    assert f'id="replica-{sick.public_id}" class="worry"' in (
        signed_in("viewer").get("/pools/chat/").content.decode()
    )


def test_the_alert_of_a_subject_that_is_gone_ends(pool, telling, judge):
    gone = make_replica(pool, public_id="rpl-b", state=Life.FAILED)
    other = make_replica(pool, public_id="rpl-c", state=Life.FAILED)
    judge()
    judge(11)
    gone.delete()
    judge(20)
    assert Alert.objects.get(subject="rpl-b").state == State.RESOLVED
    assert "no longer there" in Alert.objects.get(subject="rpl-b").reason
    assert Alert.objects.get(subject=other.public_id).state == State.FIRING


def test_a_pool_without_a_ready_replica_fires_and_one_without_any_does_not(telling, judge):
    make_replica(make_pool("down"), state=Life.EJECTED)
    make_pool("empty", model="m2")
    judge()
    judge(11)
    assert Alert.objects.get(rule="pool-down").subject == "down"


def test_a_silent_agent_and_a_late_loop_fire(telling, judge):
    make_agent("node-2", last_seen_at=timezone.now() - timedelta(minutes=5))
    LoopRun.objects.create(
        name="routing.sweep", started_at=timezone.now() - timedelta(minutes=2), interval_s=5.0
    )
    LoopRun.objects.create(
        name="of.old", started_at=timezone.now() - timedelta(days=2), interval_s=5.0
    )
    judge()
    assert Alert.objects.get(rule="agent-silent").subject == "node-2"
    assert "should every 5 s" in Alert.objects.get(rule="loop-late").reason


def test_an_exhausted_budget_fires_and_a_fast_burn_too(pool, telling, minute, judge):
    with time_machine.travel(timezone.now().replace(day=20, hour=12)):
        now = timezone.now()
        for n in range(2, 62):
            minute(at=now - timedelta(minutes=n), statuses={"500": 10})
        services.book_budgets(now)
        services.judge_alerts(now)
        assert states()["budget-exhausted"] == State.FIRING
        assert states()["burn-fast"] == State.FIRING
        assert "x over 1 h" in Alert.objects.get(rule="burn-fast").reason


def test_judging_twice_at_once_makes_one_alert(pool, telling, judge):
    telling.tell(requests={"200": 100}, ttft=SLOW)
    judge()
    judge()
    judge(61)
    judge(61)
    assert Alert.objects.filter(rule="ttft-high").count() == 1
    assert AuditEvent.objects.filter(verb="alert.fire").count() == 1


def test_an_acknowledgement_made_while_rules_are_judged_is_kept(pool, telling, judge, monkeypatch):
    telling.tell(requests={"200": 100}, ttft=SLOW)
    judge()
    judge(61)
    firing = Alert.objects.get(rule="ttft-high")
    tracked, came = alerts.tracked, []

    def meanwhile(alert):
        if alert.pk == firing.pk and not came:
            came.append(services.acknowledge_alert(pk=alert.pk, actor=WHY["actor"], reason="mine"))
        return tracked(alert)

    monkeypatch.setattr(alerts, "tracked", meanwhile)
    telling.tell(requests={"200": 100}, ttft={bucket(4.0): 100})
    judge(70)
    firing.refresh_from_db()
    assert came
    assert (firing.note, firing.acknowledged_by) == ("mine", WHY["actor"].name)


def test_an_alert_is_acknowledged_with_who_and_why_and_goes_on_firing(pool, telling, judge):
    telling.tell(requests={"200": 100}, ttft=SLOW)
    judge()
    pending = Alert.objects.get(rule="ttft-high")
    with pytest.raises(Conflict):
        services.acknowledge_alert(pk=pending.pk, actor=WHY["actor"], reason="early")
    judge(61)
    services.acknowledge_alert(pk=pending.pk, actor=WHY["actor"], reason="looking at rpl-a")
    alert = Alert.objects.get(pk=pending.pk)
    assert (alert.state, alert.acknowledged_by, alert.note) == (
        State.FIRING, "tests", "looking at rpl-a",
    )  # fmt: skip
    assert AuditEvent.objects.filter(verb="alert.acknowledge").exists()
    with pytest.raises(NotFound):
        services.acknowledge_alert(pk=9999, **WHY)


def test_a_resolved_alert_is_kept_and_a_new_one_begins_beside_it(pool, telling, judge):
    telling.tell(requests={"200": 100}, ttft=SLOW)
    judge()
    judge(61)
    telling.tell(requests={"200": 90000}, ttft={bucket(0.01): 90000})
    judge(70)
    judge(260)
    assert Alert.objects.get(rule="ttft-high").state == State.RESOLVED
    telling.tell(requests={"200": 100000}, ttft={bucket(8.9): 100000})
    judge(500)
    assert Alert.objects.filter(rule="ttft-high").count() == 2


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"rule": "no-such-rule"},
        {"pool": "no-such-pool"},
        {"rule": "kv-high", "reason": " "},
        {"rule": "kv-high", "hours": -1},
        {"rule": "kv-high", "hours": 24 * 31},
    ],
)
def test_a_silence_that_makes_no_sense_is_refused(given):
    hours = given.pop("hours", 1)
    with pytest.raises(Invalid):
        services.create_silence(ends_at=timezone.now() + timedelta(hours=hours), **(WHY | given))


def test_judging_costs_the_same_queries_for_many_pools(
    telling, django_assert_max_num_queries, judge
):
    for i in range(30):
        make_replica(make_pool(f"p{i}", model=f"m{i}"))
    judge()
    with django_assert_max_num_queries(40):
        judge()
