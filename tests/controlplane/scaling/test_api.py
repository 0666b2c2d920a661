"""REST and console of scaling: who may what, what is refused, what is shown."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.audit.models import AuditEvent
from controlplane.domain.replica_states import State
from controlplane.fleet.models import Pool
from controlplane.scaling import services
from controlplane.scaling.models import ColdStart, Override, ScalingDecision, ScalingPolicy
from tests.controlplane.calling import caller, ok, problem
from tests.controlplane.staff import poll, signed_in
from tests.factories import WHY, make_node, make_pool, make_replica

pytestmark = pytest.mark.django_db

BASE = "/api/v1/scaling-policies/"


@pytest.fixture
def pool():
    return make_pool()


def in_an_hour() -> str:
    return (timezone.now() + timedelta(hours=1)).isoformat()


class TestApi:
    def test_a_policy_is_made_changed_and_removed(self, pool):
        client = caller("operator")
        made = ok(client.post(BASE, {"pool": "chat", "max_replicas": 6, "reason": "grow"},
                              format="json"), 201)  # fmt: skip
        assert (made["min_replicas"], made["max_replicas"], made["queue_wait_limit_s"]) == (
            1,
            6,
            0.5,
        )
        assert made["change"]["fleet_revision"] is not None
        changed = ok(client.patch(f"{BASE}chat/", {"min_replicas": 2}, format="json",
                                  headers={"If-Match": '"1"'}))  # fmt: skip
        assert (changed["min_replicas"], changed["max_replicas"], changed["version"]) == (2, 6, 2)
        problem(client.patch(f"{BASE}chat/", {"min_replicas": 3}, format="json",
                             headers={"If-Match": '"1"'}), 409, "stale_version")  # fmt: skip
        assert [p["pool"] for p in ok(client.get(BASE))["results"]] == ["chat"]
        ok(client.delete(f"{BASE}chat/"), 204)
        assert Pool.objects.get().start_wait_s == 0.0
        verbs = list(AuditEvent.objects.filter(target="chat").values_list("verb", flat=True))
        assert verbs.count("scaling.set_policy") == 2

    def test_a_second_policy_is_a_conflict(self, pool):
        client = caller("operator")
        ok(client.post(BASE, {"pool": "chat"}, format="json"), 201)
        problem(client.post(BASE, {"pool": "chat"}, format="json"), 409, "stale_version")

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"min_replicas": 5, "max_replicas": 4}, "min_replicas"),
            ({"utilisation_low": 0.9}, "utilisation_low"),
            ({"gpus_per_replica": 3}, "gpus_per_replica"),
            ({"engine_arguments": {"--x": [1]}}, "engine_arguments"),
            ({"program": "bash"}, "program"),
            ({"kv_usage_limit": 2}, "kv_usage_limit"),
            ({"pool": "nowhere"}, None),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_its_field(self, pool, given, field):
        answer = caller("operator").post(BASE, {"pool": "chat"} | given, format="json")
        assert answer.status_code in (400, 404)
        assert field is None or field in str(answer.json())
        assert not ScalingPolicy.objects.exists()

    def test_an_override_has_bounds_a_reason_and_an_end(self, pool):
        client = caller("operator")
        url = f"{BASE}chat/override/"
        given = {"count": 2, "expires_at": in_an_hour(), "reason": "launch"}
        problem(client.post(url, given, format="json"), 409, "no_policy")
        services.set_policy(pool="chat", max_replicas=4, **WHY)
        assert problem(client.post(url, given | {"count": 9}, format="json"), 400, "invalid")[
            "field"
        ] == "count"  # fmt: skip
        problem(client.post(url, given | {"expires_at": "2020-01-01T00:00:00Z"}, format="json"),
                400, "invalid")  # fmt: skip
        problem(client.post(url, given | {"reason": ""}, format="json"), 400, "invalid")
        body = ok(client.post(url, given, format="json"))
        assert (body["override"]["count"], body["override"]["reason"]) == (2, "launch")
        ok(client.post(url, given | {"count": 3}, format="json"))
        assert Override.objects.filter(ended_at=None).count() == 1
        body = ok(client.post(f"{BASE}chat/end-override/", {}, format="json"))
        assert body["override"] is None
        problem(client.post(f"{BASE}chat/end-override/", {}, format="json"), 409, "state_conflict")

    def test_a_viewer_reads_and_changes_nothing(self, pool):
        services.set_policy(pool="chat", **WHY)
        client = caller("viewer")
        ok(client.get(f"{BASE}chat/"))
        assert client.patch(f"{BASE}chat/", {"enabled": False}, format="json").status_code == 403

    def test_decisions_are_listed_with_inputs(self, pool):
        row = decision(pool)
        client = caller("viewer")
        found = ok(client.get("/api/v1/scaling-decisions/?pool=chat"))["results"]
        assert [d["reason"] for d in found] == [row.reason]
        one = ok(client.get(f"/api/v1/scaling-decisions/{row.pk}/"))
        assert one["inputs"]["signals"][0]["name"] == "queue wait P95"

    def test_a_dry_run_changes_nothing(self, pool):
        body = ok(caller("operator").post(f"{BASE}?dry_run=true", {"pool": "chat"}, format="json"))
        assert body["change"]["dry_run"]
        assert not ScalingPolicy.objects.exists()


def decision(pool, **given) -> ScalingDecision:
    now = timezone.now()
    signal = {"name": "queue wait P95", "unit": "s", "value": 3.0, "limit": 0.5, "age_s": 1.0,
              "note": ""}  # fmt: skip
    missing = {"name": "KV usage", "unit": "ratio", "value": None, "limit": 0.85, "age_s": None,
               "note": "mean of 0 of 1 ready replicas"}  # fmt: skip
    fields = {
        "at": now, "last_at": now, "code": "up", "before": 1, "raw": 2, "wanted": 2,
        "reason": "queue wait P95 3.00 s over 0.50 s", "outcome": "rpl-x on node-1",
        "inputs": {"signals": [signal, missing], "replicas": {}},
    } | given  # fmt: skip
    return ScalingDecision.objects.create(pool=pool, **fields)


class TestPages:
    def test_the_list_says_why_each_pool_has_so_many(self, pool):
        services.set_policy(pool="chat", **WHY)
        make_pool("other", model="n")
        decision(pool)
        body = signed_in("viewer").get("/scaling/").content.decode()
        assert "queue wait P95 3.00 s over 0.50 s" in body
        assert 'href="/scaling/other/"' in body
        assert "Set a policy" not in body

    def test_a_pools_page_shows_signals_with_age_and_what_is_on_its_way(self, pool):
        services.set_policy(pool="chat", **WHY)
        decision(pool)
        make_replica(pool)
        make_replica(pool, state=State.LOADING)
        ColdStart.objects.create(
            replica="rpl-0", start=1, model_version=pool.model_version, node=make_node("node-9"),
            seconds=42.0, at=timezone.now(),
        )  # fmt: skip
        body = signed_in("operator").get("/scaling/chat/").content.decode()
        assert "42" in body
        assert "due about" in body
        assert "— no data" in body
        assert "Override" in body

    def test_a_late_loop_and_an_alarm_are_told(self, pool):
        services.set_policy(pool="chat", **WHY)
        row = decision(pool, is_alarm=True)
        client = signed_in("viewer")
        assert "needs a look" in client.get("/scaling/").content.decode()
        row.last_at = timezone.now() - timedelta(minutes=5)
        row.save()
        assert "no decision lately" in client.get("/scaling/").content.decode()

    def test_a_poll_without_a_change_costs_no_answer(self, pool):
        services.set_policy(pool="chat", **WHY)
        client = signed_in("viewer")
        first = poll(client, "/scaling/chat/")
        assert poll(client, "/scaling/chat/", first["X-Digest"]).status_code == 204

    def test_a_pool_without_a_policy_gets_one_in_two_steps(self, pool):
        client = signed_in("operator")
        assert "This pool does not scale" in client.get("/scaling/chat/").content.decode()
        form = client.get("/scaling/chat/policy/")
        assert form.status_code == 200
        given = {name: value for name, value in form.context["form"].initial.items()
                 if value is not None}  # fmt: skip
        given |= {"max_replicas": 7, "engine_arguments": "{}", "expected_version": 0}
        review = client.post("/scaling/chat/policy/", given | {"step": "review"})
        assert "At most" in review.content.decode()
        assert not ScalingPolicy.objects.exists()
        done = client.post("/scaling/chat/policy/", given | {"step": "apply", "reason": "grow"})
        assert done.status_code == 302
        assert ScalingPolicy.objects.get().max_replicas == 7

    def test_a_refused_policy_shows_the_field(self, pool):
        services.set_policy(pool="chat", **WHY)
        client = signed_in("operator")
        given = {name: value for name, value in
                 client.get("/scaling/chat/policy/").context["form"].initial.items()
                 if value is not None}  # fmt: skip
        given |= {"gpus_per_replica": 3, "engine_arguments": "{}", "expected_version": 1}
        body = client.post("/scaling/chat/policy/", given | {"step": "apply", "reason": "x"})
        assert "powers of two" in body.content.decode()

    def test_an_override_is_made_and_ended_in_the_console(self, pool):
        services.set_policy(pool="chat", **WHY)
        client = signed_in("operator")
        assert "Within the policy" in client.get("/scaling/chat/override/").content.decode()
        bad = client.post("/scaling/chat/override/", {"count": 99, "hours": "1", "reason": "x"})
        assert bad.status_code == 200
        given = {"count": 3, "hours": "4", "reason": "launch"}
        assert client.post("/scaling/chat/override/", given).status_code == 302
        assert "3 replicas wanted by a-operator" in client.get("/scaling/chat/").content.decode()
        assert client.post("/scaling/chat/end-override/").status_code == 302
        assert Override.objects.get().ended_at is not None

    def test_a_viewer_is_offered_nothing_and_may_nothing(self, pool):
        services.set_policy(pool="chat", **WHY)
        client = signed_in("viewer")
        assert "/override/" not in client.get("/scaling/chat/").content.decode()
        assert client.get("/scaling/chat/policy/").status_code == 403
        assert client.post("/scaling/chat/end-override/").status_code == 403

    def test_one_without_scaling_is_a_pool_page_away(self, pool):
        assert 'href="/scaling/chat/"' in signed_in("viewer").get("/pools/chat/").content.decode()


class TestAttention:
    def test_a_pool_that_cannot_grow_as_it_should_is_on_the_landing_page(self, pool):
        services.set_policy(pool="chat", **WHY)
        decision(pool, is_alarm=True, reason="but 4 replicas are the most")
        body = signed_in("viewer").get("/").content.decode()
        assert 'href="/scaling/chat/"' in body
        assert "Pool chat cannot scale as its load asks" in body

    def test_an_alarm_of_long_ago_and_a_warm_spare_are_not(self, pool):
        long_ago = timezone.now() - timedelta(hours=1)
        decision(pool, is_alarm=True, last_at=long_ago)
        spare = make_replica(pool, state=State.WARMING, is_spare=True, state_since=long_ago)
        body = signed_in("viewer").get("/").content.decode()
        assert "cannot scale" not in body
        assert spare.public_id not in body
