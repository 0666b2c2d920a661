"""Tables go in, what replicas have learned stays."""

from __future__ import annotations

from msgspec.structs import replace

from routing_agent import wire
from routing_agent.core.explain import explain
from routing_agent.core.figures import EngineFigures
from routing_agent.core.fleet import Fleet
from routing_agent.core.replica_report import report_of
from tests.agent.core.build import (
    NOW,
    chance,
    endpoint,
    fleet,
    model,
    pool,
    replica,
    settings,
    share,
    table,
)


def apply(made: Fleet, *pools: wire.Pool, **changes: object) -> object:
    return made.apply(table(*pools, **changes), now=NOW, wall=NOW)


def test_a_table_says_what_it_changed() -> None:
    made = Fleet()
    first = pool(endpoints=(endpoint("a"), endpoint("b"), endpoint("c")))
    assert apply(made, first).added == ("a", "b", "c")
    second = pool(endpoints=(endpoint("b", weight=2.0), endpoint("c"), endpoint("d")))
    change = apply(made, second)
    assert (change.added, change.removed, change.changed) == (("d",), ("a",), ("b",))
    assert made.generation == 2


def test_load_and_health_outlive_tables_but_not_addresses() -> None:
    made = fleet(pool(endpoints=(endpoint("a"), endpoint("b"))))
    a, b = made.replicas["a"], made.replicas["b"]
    a.begin(10, NOW)
    b.begin(10, NOW)
    change = apply(
        made, pool(endpoints=(endpoint("a", weight=3.0), endpoint("b", url="http://x:1")))
    )
    assert change.changed == ("a", "b")
    assert made.replicas["a"] is a
    assert a.endpoint.weight == 3.0
    assert made.replicas["b"] is not b
    assert made.replicas["b"].inflight_tokens == 0
    assert made.leaving == [b]
    assert b.exclusion(NOW) == "removed from the routing table"
    b.release(10)
    made.forget_empty()
    assert made.leaving == []


def test_a_removed_replica_stays_removed_whatever_it_learns() -> None:
    made = fleet(pool(endpoints=(endpoint("a"),)))
    a = made.replicas["a"]
    a.begin(1, NOW)
    apply(made, pool(endpoints=()))
    a.note_health(False, "gone", NOW)
    a.note_health(True, "back", NOW)
    assert a.exclusion(NOW) == "removed from the routing table"
    a.leave(NOW + 5)
    assert a.leaving_at == NOW


def test_pools_keep_their_turn_and_budget() -> None:
    made = fleet(pool())
    state = made.pools["p"]
    state.cursor = 7
    apply(made, pool(settings=settings(retry_budget_ratio=0.5)))
    assert made.pools["p"] is state
    assert (state.cursor, state.budget.ratio) == (7, 0.5)
    apply(made, pool("q"), models=())
    assert set(made.pools) == {"q"}


def test_gates_follow_their_tenants() -> None:
    tenant = wire.Tenant(name="t", limits=wire.TenantLimits(concurrency=1))
    made = fleet(tenants=(tenant,))
    gate = made.gate(tenant, NOW)
    assert made.gate(tenant, NOW) is gate
    gate.admit(1, NOW)
    apply(made, tenants=(replace(tenant, limits=wire.TenantLimits(concurrency=2)),))
    assert gate.limits.concurrency == 2
    apply(made)
    assert "t" in made.gates
    gate.release(charged=1, used=1)
    apply(made)
    assert "t" not in made.gates


def test_a_ramp_seen_by_another_process_may_begin_after_this_ones_clock() -> None:
    """Processes of one agent tell each other; the teller's clock was read later than ours."""
    for slow_start_s, weight in ((0.0, 1.0), (30.0, 0.1)):
        made = replica(slow_start_s=slow_start_s, slow_start_from_ratio=0.1)
        made.ramp_from = 10.001
        assert abs(made.weight(10.0) - weight) < 1e-9


def test_slow_start_counts_from_when_the_replica_became_ready() -> None:
    made = Fleet()
    config = settings(slow_start_s=30, slow_start_from_ratio=0.1)
    ends = (
        endpoint("old"),
        endpoint("new", ready_at=NOW - 15),
        endpoint("future", ready_at=NOW + 600),
    )
    made.apply(table(pool(endpoints=ends, settings=config)), now=50.0, wall=NOW)
    assert made.replicas["old"].weight(50.0) == 1.0
    assert abs(made.replicas["new"].weight(50.0) - 0.55) < 1e-9
    assert abs(made.replicas["future"].weight(50.0) - 0.1) < 1e-9
    assert made.replicas["new"].weight(66.0) == 1.0
    assert made.replicas["new"].ramp_from is None


def test_states_keep_a_replica_out_each_with_its_reason() -> None:
    made = replica(slow_start_s=30)
    seen = {}
    for state in ("warming", "ejected", "draining", "ready"):
        made.adopt(endpoint(state=state), pool="p", settings=made.settings, now=NOW)
        seen[state] = made.exclusion(NOW)
    assert seen == {
        "warming": "warming up",
        "ejected": "ejected by an operator",
        "draining": "draining",
        "ready": "",
    }
    assert made.leaving_at is None


def test_a_replica_that_finished_warming_starts_slowly() -> None:
    made = replica(slow_start_s=30)
    made.adopt(endpoint(state="warming"), pool="p", settings=made.settings, now=NOW)
    made.adopt(endpoint(), pool="p", settings=made.settings, now=NOW)
    assert abs(made.weight(NOW) - 0.1) < 1e-9


def test_draining_is_dated_once() -> None:
    made = replica()
    for now in (NOW, NOW + 5):
        made.adopt(endpoint(state="draining"), pool="p", settings=made.settings, now=now)
    assert made.leaving_at == NOW


def test_probes_turn_health_at_their_thresholds() -> None:
    """R17: one or two misses change nothing."""
    made = replica(probe_failures=3, probe_recoveries=2, slow_start_s=30)
    assert made.exclusion(NOW) == ""  # never probed is no reason to stay away
    assert made.note_probe(True, "ok", NOW)
    assert [made.note_probe(False, "slow", NOW) for _ in range(3)] == [False, False, True]
    assert made.exclusion(NOW) == "unhealthy: slow"
    assert made.is_ejected()
    assert not made.note_probe(False, "slow", NOW)
    assert not made.note_probe(True, "ok", NOW)
    assert made.note_probe(True, "ok", NOW)
    assert made.exclusion(NOW) == ""
    assert made.weight(NOW) < 0.2


def test_tokens_outweigh_a_bad_probe() -> None:
    """Section 9: tokens count as life."""
    made = replica(probe_failures=1, probe_interval_s=5)
    made.last_token_at = NOW - 1
    assert not made.note_probe(False, "slow", NOW)
    assert made.note_probe(False, "slow", NOW + 10)


def test_a_sleeping_engine_gets_no_requests() -> None:
    made = replica()
    made.note_scrape(EngineFigures(running=1, is_asleep=True), NOW)
    assert made.exclusion(NOW).startswith("asleep")
    made.note_scrape(EngineFigures(), NOW)
    assert made.exclusion(NOW) == ""


def test_a_failed_scrape_keeps_the_last_figures() -> None:
    made = replica()
    assert report_of(made, NOW).scrape_age_s is None
    made.note_scrape(EngineFigures(running=4, waiting=2, kv_usage=0.5), NOW)
    made.note_scrape_error("time-out")
    report = report_of(made, NOW + 3)
    assert (report.engine_running, report.engine_waiting, report.kv_usage) == (4, 2, 0.5)
    assert (report.scrape_age_s, report.scrape_error) == (3.0, "time-out")


def test_a_new_process_is_noticed() -> None:
    made = replica()
    assert not made.note_process(100.0)
    assert not made.note_process(100.2)
    assert made.note_process(200.0)
    assert not made.note_process(None)


def test_explanations_use_the_same_code_and_take_no_turn() -> None:
    made = fleet(pool(size=2))
    made.replicas["p0"].begin(500, NOW)
    cursor = made.pools["p"].cursor
    asked = wire.ExplainRequest(model="m", tenant="t", session="s", prompt="hello")
    found = explain(made, asked, now=NOW)
    assert (found.pool, found.version, found.policy) == ("p", "1", "expected_ttft")
    assert (found.replica, found.route) == ("p1", "load")
    assert [c.replica for c in found.candidates] == ["p0", "p1"]
    assert found.candidates[0].terms["held_tokens"] == 64
    assert made.pools["p"].cursor == cursor
    assert made.replicas["p1"].inflight_requests == 0


def test_explanations_say_why_not() -> None:
    assert "no routing table" in explain(Fleet(), wire.ExplainRequest(model="m"), now=NOW).error
    made = fleet(models=(model(), model("n", share("p", 0))))
    assert "no model" in explain(made, wire.ExplainRequest(model="x"), now=NOW).error
    assert "no pool" in explain(made, wire.ExplainRequest(model="n"), now=NOW).error
    for each in made.replicas.values():
        each.note_health(False, "port closed", NOW)
    found = explain(made, wire.ExplainRequest(model="m"), now=NOW)
    assert "3 of 3: unhealthy: port closed" in found.error
    assert (found.replica, found.route) == ("", "")
    assert {c.excluded for c in found.candidates} == {"unhealthy: port closed"}


def test_random_explanations_roll_no_dice() -> None:
    made = fleet(pool(settings=settings(policy="random")))
    names = {explain(made, wire.ExplainRequest(model="m"), now=NOW).replica for _ in range(5)}
    assert len(names) == 1
    assert 0 <= chance().random() < 1
