"""Which adapter a request means, where it may go, and what a replica is seen to hold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent import wire
from routing_agent.core import explain as explaining
from routing_agent.core.adapters import (
    find_adapter,
    has_failed,
    is_loaded,
    listed_names,
    names_by_tenant,
    pool_awaiting,
    pool_holding,
)
from routing_agent.core.choose import LOADING, NOT_RESIDENT, choose, exclusion
from routing_agent.core.engine_errors import lacks_adapter, read_error
from routing_agent.core.engine_traits import adapter_model
from routing_agent.core.policy import RouteRequest
from routing_agent.core.replica_report import report_of
from routing_agent.core.residence import (
    LEARNING_RATE,
    LEAST_LOAD_S,
    LONGEST_LOAD_S,
    MISSING_IS_NEWS_S,
    PRIOR_LOAD_S,
    is_ours,
)
from routing_agent.core.table import compile_table, session_hash
from tests.agent.core.build import NOW, chance, endpoint, fleet, model, pool, share, table

HEX = "0123456789ab"


def adapter(name: str = "sql", tenant: str = "acme", **changes: Any) -> wire.Adapter:
    fields = {
        "name": name, "tenant": tenant, "model": "m", "digest": HEX * 5 + "0123",
        "served_name": f"{tenant}.{name}.{HEX}",
    }  # fmt: skip
    return wire.Adapter(**{**fields, **changes})


def holding(*served: str, name: str = "p", size: int = 2, **changes: Any) -> wire.Pool:
    """A pool whose replicas should hold these adapters."""
    endpoints = tuple(endpoint(f"{name}{i}", adapters=served) for i in range(size))
    return pool(name, endpoints=endpoints, **changes)


# -- names -----------------------------------------------------------------------------------------


def test_own_adapters_go_before_shared_ones_and_owners_can_be_named() -> None:
    own, shared = adapter(), adapter(tenant="bravo", shared_with=("acme",))
    names = names_by_tenant((own, shared))
    assert names["acme"] == {"sql": own, "acme/sql": own, "bravo/sql": shared}
    assert names["bravo"] == {"sql": shared, "bravo/sql": shared}
    assert listed_names(names["acme"]) == {"sql": own, "bravo/sql": shared}


def test_a_shared_name_that_is_ambiguous_needs_its_owner() -> None:
    one, other = (adapter(tenant=t, shared_with=("acme",)) for t in ("bravo", "charlie"))
    names = names_by_tenant((one, other))["acme"]
    assert names == {"bravo/sql": one, "charlie/sql": other}
    assert listed_names(names) == names
    assert names_by_tenant((one,))["acme"] == {"sql": one, "bravo/sql": one}


def test_a_name_that_a_model_has_means_the_model() -> None:
    shared = adapter(tenant="bravo", shared_with=("acme",))
    assert names_by_tenant((shared,), taken=("bravo/sql",))["acme"] == {"sql": shared}


def test_versions_that_are_not_active_have_no_name() -> None:
    assert names_by_tenant((adapter(active=False),)) == {}


@given(
    st.lists(
        st.builds(
            adapter,
            name=st.sampled_from(["a", "b"]),
            tenant=st.sampled_from(["t", "u", "v"]),
            shared_with=st.sets(st.sampled_from(["t", "u", "v"])).map(tuple),
        ),
        max_size=5,
        unique_by=lambda one: one.served_name,
    )
)
def test_each_adapter_a_tenant_may_call_is_listed_once_and_no_other(
    adapters: list[wire.Adapter],
) -> None:
    names = names_by_tenant(adapters)
    for tenant in ("t", "u", "v"):
        listed = listed_names(names.get(tenant, {}))
        may_call = {a.served_name for a in adapters if tenant in (a.tenant, *a.shared_with)}
        assert sorted(a.served_name for a in listed.values()) == sorted(may_call)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": ""}, "no name"),
        ({"served_name": ""}, "no name"),
        ({"served_name": "a\nb"}, "no header"),
        ({"name": "m"}, "a model has this name"),
        ({"name": "alias"}, "a model has this name"),
        ({"served_name": "m"}, "a model has this name"),
        ({"model": "other"}, "no model 'other'"),
        ({"served_name": f"acme.good.{HEX}"}, "used twice"),
    ],
)
def test_an_adapter_that_makes_no_sense_is_left_out_and_named(
    changes: dict[str, Any], fault: str
) -> None:
    """R40: a base model's name always means the base model."""
    good = adapter("good")
    bad = adapter(**{"served_name": f"acme.sql.{HEX}", **changes})
    compiled = compile_table(table(models=(model(aliases=("alias",)),), adapters=(good, bad)))
    assert list(compiled.served_adapters.values()) == [good]
    [told] = compiled.faults
    assert fault in told


def test_only_its_tenants_can_name_an_adapter() -> None:
    """R39: to others it does not exist, and says so in the same words."""
    compiled = compile_table(table(adapters=(adapter(shared_with=("bravo",)),)))
    for tenant in ("acme", "bravo"):
        assert find_adapter(compiled, tenant, "sql", None).adapter is not None
    for tenant in ("charlie", ""):
        assert find_adapter(compiled, tenant, "sql", None).problem == "There is no model 'sql'."


def test_a_lora_field_names_an_adapter_of_the_model_beside_it() -> None:
    models = (model(aliases=("alias",)), model("other", share("p")))
    compiled = compile_table(table(models=models, adapters=(adapter(), adapter("style"))))

    def meant(named: str, lora: str) -> str:
        found = find_adapter(compiled, "acme", named, lora)
        assert (found.model is None) == (found.adapter is None)
        return found.problem or found.adapter.name if found.adapter else found.problem

    assert meant("m", "sql") == meant("alias", "sql") == meant("sql", "sql") == "sql"
    assert meant("m", "nope") == "There is no adapter 'nope'. Name one that you may call."
    assert meant("other", "sql") == "Adapter 'sql' belongs to model 'm', not to 'other'."
    assert meant("style", "sql") == meant("nope", "sql").replace("nope", "style")
    assert find_adapter(compiled, "acme", "m", None).adapter is None


def test_sessions_of_a_model_and_of_its_adapters_are_apart() -> None:
    keys = {
        session_hash(1, "t", "named", b"s", adapter=name) for name in ("", "a", "b")
    }  # fmt: skip
    assert len(keys) == 3
    assert session_hash(1, "t", "named", b"s") in keys


# -- where it may go -------------------------------------------------------------------------------


def test_only_replicas_that_list_a_wanted_adapter_are_chosen() -> None:
    one = adapter()
    made = fleet(holding(one.served_name, size=3), adapters=(one,))
    state, asked = made.pools["p"], RouteRequest(1, 7, adapter=one.served_name)
    reason = choose(asked, state, now=NOW, chance=chance()).reason
    assert reason == f"3 of 3: {LOADING}; expected in {PRIOR_LOAD_S:.1f} s on p0"
    made.replicas["p1"].adapters.note_listed((one.served_name,), NOW)
    for _ in range(20):
        choice = choose(asked, state, now=NOW, chance=chance(), explain=True)
        assert choice.replica is made.replicas["p1"]
    assert [c.excluded for c in choice.candidates] == [LOADING, "", LOADING]
    assert choice.candidates[0].terms["adapter_load_s"] == PRIOR_LOAD_S
    assert "adapter_load_s" not in choice.candidates[1].terms
    assert not exclusion(RouteRequest(1, 7), made.replicas["p0"], NOW)


def test_an_adapter_that_is_to_go_gets_nothing_new() -> None:
    """R41: still listed by the engine, no longer in the table."""
    one = adapter()
    made = fleet(holding(one.served_name), adapters=(one,))
    held = made.replicas["p0"].adapters
    held.note_listed((one.served_name,), NOW)
    assert held.resident == {one.served_name}
    made.apply(table(holding()), now=NOW, wall=NOW)
    assert (held.resident, held.listed) == (frozenset(), (one.served_name,))


def test_a_restart_and_a_lost_adapter_end_its_traffic_at_once() -> None:
    """R38."""
    one = adapter()
    made = fleet(holding(one.served_name), adapters=(one,))
    replica = made.replicas["p0"]
    for end in (replica.note_restart, lambda now: replica.adapters.note_lost(one.served_name, now)):
        replica.adapters.note_listed((one.served_name, "other"), NOW)
        assert replica.adapters.resident
        end(NOW)
        assert not replica.adapters.resident
        assert replica.adapters.may_miss(NOW + 1)
    assert replica.adapters.listed == ("other",)
    assert not replica.adapters.may_miss(NOW + MISSING_IS_NEWS_S)


def test_an_engine_that_cannot_be_asked_for_adapters_holds_none() -> None:
    one = adapter()
    endpoints = (endpoint("p0", engine="llamacpp", adapters=(one.served_name,)),)
    made = fleet(pool(endpoints=endpoints), adapters=(one,))
    made.replicas["p0"].adapters.note_listed((one.served_name,), NOW)
    assert not made.replicas["p0"].adapters.resident


def test_the_pool_of_a_session_is_left_for_one_that_holds_the_adapter() -> None:
    one = adapter()
    pools = [holding(one.served_name, name=name) for name in ("a", "b")]
    made = fleet(*pools, models=(model("m", share("a"), share("b")),), adapters=(one,))
    found = made.table.models["m"]

    def chosen() -> str | None:
        state = pool_holding(made.pools, found, made.pools["a"], one.served_name)
        return state.pool.name if state else None

    assert (chosen(), is_loaded(made.pools, found, one.served_name)) == (None, False)
    made.replicas["b0"].adapters.note_listed((one.served_name,), NOW)
    assert (chosen(), is_loaded(made.pools, found, one.served_name)) == ("b", True)
    made.replicas["a0"].adapters.note_listed((one.served_name,), NOW)
    assert chosen() == "a"
    made.replicas["a0"].note_doubt("state", "asleep")
    assert chosen() == "b"
    made.replicas["b0"].note_doubt("state", "asleep")
    assert chosen() == "a"


def test_failed_is_said_only_when_nothing_is_on_its_way() -> None:
    one = adapter()
    made = fleet(holding(one.served_name), adapters=(one,))
    found = made.table.models["m"]
    assert not has_failed(made.pools, found, one.served_name)
    made.replicas["p0"].adapters.note_stage(one.served_name, "failed", NOW)
    assert has_failed(made.pools, found, one.served_name)
    made.replicas["p1"].adapters.note_stage(one.served_name, "fetching", NOW)
    assert not has_failed(made.pools, found, one.served_name)


def test_explain_tells_of_the_adapter() -> None:
    one = adapter()
    made = fleet(
        holding(one.served_name), adapters=(one,), tenants=(wire.Tenant(name="acme"),)
    )  # fmt: skip
    made.replicas["p1"].adapters.note_listed((one.served_name,), NOW)

    def told(**fields: str) -> wire.Explanation:
        asked = wire.ExplainRequest(**{"tenant": "acme", "model": "m", **fields})
        return explaining.explain(made, asked, now=NOW)

    for fields in ({"adapter": "sql"}, {"model": "sql"}):
        answer = told(**fields)
        assert (answer.replica, answer.adapter, answer.error) == ("p1", one.served_name, "")
        assert [c.excluded for c in answer.candidates] == [LOADING, ""]
    assert told().adapter == ""
    assert told(adapter="sql", tenant="bravo").error.startswith("There is no adapter 'sql'")
    made.replicas["p1"].adapters.note_listed((), NOW)
    answer = told(model="sql")
    assert (answer.replica, answer.awaited, answer.error) == ("", "p1", "")
    made.apply(
        table(holding(), adapters=(one,), tenants=made.wire_table.tenants), now=NOW, wall=NOW
    )
    assert told(model="sql").error == f"No replica can take it: 2 of 2: {NOT_RESIDENT}."


# -- how soon it will be there ---------------------------------------------------------------------


def test_a_load_is_expected_to_take_as_long_as_those_before_it_and_then_as_long_again() -> None:
    one = adapter()
    made = fleet(holding(one.served_name), adapters=(one,))
    replica, name = made.replicas["p0"], one.served_name
    held = replica.adapters

    def waits(after_s: float) -> float | None:
        return held.load_wait_s(name, NOW + after_s)

    assert [waits(at) for at in (0, 1, 4)] == [PRIOR_LOAD_S, PRIOR_LOAD_S - 1, 4]
    held.note_listed((name,), NOW + 1)
    assert waits(1) is None
    learned_s = PRIOR_LOAD_S + LEARNING_RATE * (1 - PRIOR_LOAD_S)
    held.note_restart(NOW + 10)
    assert waits(10) == pytest.approx(learned_s)
    replica.note_health(True, "up", NOW + 20)
    assert waits(20) == pytest.approx(learned_s)
    held.note_listed((name,), NOW + 21 + LONGEST_LOAD_S)
    assert held.load_s == pytest.approx(learned_s)
    held.load_s = 0.0
    held.note_lost(name, NOW + 100)
    assert waits(100) == LEAST_LOAD_S
    held.note_stage(name, "failed", NOW)
    assert waits(100) is None
    assert held.load_wait_s("other", NOW) is None


def test_an_engine_that_takes_no_adapters_while_it_runs_is_not_waited_for() -> None:
    one = adapter()
    endpoints = (endpoint("p0", engine="llamacpp", adapters=(one.served_name,)),)
    made = fleet(pool(endpoints=endpoints), adapters=(one,))
    asked = RouteRequest(1, 7, adapter=one.served_name)
    assert exclusion(asked, made.replicas["p0"], NOW) == NOT_RESIDENT
    found = made.table.models["m"]
    assert pool_awaiting(made.pools, found, made.pools["p"], one.served_name, NOW) is None


def test_a_request_waits_for_the_adapter_where_that_is_sooner_than_where_it_is() -> None:
    one = adapter()
    made = fleet(holding(one.served_name, size=3), adapters=(one,))
    state, asked = made.pools["p"], RouteRequest(1, 7, adapter=one.served_name, prompt_tokens=10)
    has, comes, down = (made.replicas[f"p{i}"] for i in range(3))
    has.adapters.note_listed((one.served_name,), NOW)
    down.note_health(False, "off", NOW)

    def chosen(**changes: object) -> tuple[str, str]:
        for name, value in changes.items():
            setattr(asked, name, value)
        choice = choose(asked, state, now=NOW, chance=chance())
        names = [r.id if r is not None else "" for r in (choice.replica, choice.awaited)]
        return names[0], names[1]

    assert chosen() == ("p0", "")
    has.prefill.place(100_000, NOW)
    assert chosen() == ("", "p1")
    reason = choose(asked, state, now=NOW, chance=chance()).reason
    assert reason.startswith("waits 1.5 s for the adapter to be loaded on p1: ")
    assert reason.endswith(" s less than on p0, which has it")
    comes.adapters.load_s = 6.0  # more than may be waited for
    assert chosen() == ("p0", "")
    has.note_health(False, "off", NOW)
    assert chosen() == ("", "")
    comes.adapters.load_s = 1.0
    assert chosen() == ("", "p1")
    assert chosen(tried=("p1",)) == ("", "")
    found = made.table.models["m"]
    awaiting = pool_awaiting(made.pools, found, state, one.served_name, NOW)
    assert awaiting is state


# -- what is seen and told -------------------------------------------------------------------------


def test_adapters_of_somebody_else_are_not_told() -> None:
    one = adapter()
    made = fleet(holding(one.served_name), adapters=(one,))
    held = made.replicas["p0"].adapters
    held.note_listed(("by-hand", one.served_name, one.served_name, f"old.x.{HEX}"), NOW)
    assert report_of(made.replicas["p0"], NOW).adapters == (one.served_name, f"old.x.{HEX}")
    assert not any(map(is_ours, ("", "sql", "a.0123456789aB", f"a b.{HEX}")))


def test_a_stage_keeps_its_time_while_it_goes_on() -> None:
    held = fleet().replicas["p0"].adapters
    held.note_stage("a", "failed", NOW, message="no", attempts=1)
    held.note_stage("a", "failed", NOW + 5, message="x" * 600, attempts=2)
    [told] = held.report(NOW + 7)
    assert (told.for_s, told.attempts, len(told.message)) == (7.0, 2, 500)
    held.note_stage("a", "loaded", NOW + 8)
    assert [(s.state, s.for_s) for s in held.report(NOW + 9)] == [("loaded", 1.0)]


def test_requests_under_way_are_counted_by_adapter() -> None:
    held = fleet().replicas["p0"].adapters
    held.begin("a")
    held.begin("a")
    held.end("a")
    assert held.running == {"a": 1}
    held.end("a")
    assert held.running == {}


@pytest.mark.parametrize(
    ("status", "message", "lacks"),
    [
        (404, "The model `sql` does not exist. Valid aliases: tiny.", True),
        (400, "Got LoRA adapter that has never been loaded: sql\nAll loaded adapters: []", True),
        (400, "sql is no sampling parameter", False),
        (404, "Not Found", False),
    ],
)
def test_an_engine_that_does_not_have_an_adapter_says_so(
    status: int, message: str, lacks: bool
) -> None:
    body = b'{"message": "%b"}' % message.replace("\n", "\\n").encode()
    assert lacks_adapter(read_error(status, body), "sql") is lacks


def test_sglang_wants_the_base_before_the_adapter() -> None:
    assert adapter_model("sglang", "tiny", "sql") == "tiny:sql"
    assert adapter_model("vllm", "tiny", "sql") == adapter_model("tgi", "tiny", "sql") == "sql"
    assert adapter_model("llamacpp", "tiny", "sql") is None
