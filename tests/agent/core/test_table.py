"""Compiling tables: bad rows stay out, splits are exact, sessions stay apart."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from routing_agent import wire
from routing_agent.core.address import parse_url, url_fault
from routing_agent.core.paths import extra_path_fault
from routing_agent.core.table import compile_table, session_hash
from tests.agent.core.build import endpoint, model, pool, settings, share, table

SHA = hashlib.sha256(b"k").hexdigest()
SESSIONS = st.integers(min_value=0, max_value=2**64 - 1)


@given(SESSIONS)
def test_weights_of_zero_and_hundred_are_exact(session: int) -> None:
    """R33: not one session leaks."""
    pools = (pool("stable"), pool("canary"))
    for weights, expected in (((100, 0), "stable"), ((0, 100), "canary"), ((0, 0.001), "canary")):
        shares = [share(n, w) for n, w in zip(("stable", "canary"), weights, strict=True)]
        compiled = compile_table(table(*pools, models=(model("m", *shares),)))
        assert compiled.models["m"].pool_for(session) == expected


def test_one_percent_is_about_one_percent() -> None:
    """R33: 99/1 over 2,000 sessions."""
    shares = (share("a", 99), share("b", 1))
    compiled = compile_table(table(pool("a"), pool("b"), models=(model("m", *shares),)))
    chosen = [
        compiled.models["m"].pool_for(session_hash(0, "t", "named", str(i).encode()))
        for i in range(2000)
    ]
    assert 5 <= chosen.count("b") <= 45


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=5), SESSIONS)
def test_every_session_has_a_pool_with_weight(weights: list[float], session: int) -> None:
    pools = [pool(f"p{i}") for i in range(len(weights))]
    shares = [share(f"p{i}", w) for i, w in enumerate(weights)]
    found = compile_table(table(*pools, models=(model("m", *shares),))).models["m"]
    if not found.pools:
        assert not any(weights)
    else:
        assert weights[int(found.pool_for(session)[1:])] > 0


WEIGHTS = st.lists(st.floats(min_value=0.01, max_value=1e3), min_size=2, max_size=4)


def chosen(weights: list[float], session: int) -> str:
    names = [f"p{i}" for i in range(len(weights))]
    shares = [share(name, weight) for name, weight in zip(names, weights, strict=True)]
    pools = [pool(name) for name in names]
    return compile_table(table(*pools, models=(model("m", *shares),))).models["m"].pool_for(session)


@settings_of_hypothesis(max_examples=50, deadline=None)
@given(WEIGHTS, st.integers(0, 3), st.floats(min_value=1.0, max_value=1e4), SESSIONS)
def test_a_share_that_grows_moves_sessions_only_towards_it(
    weights: list[float], grown: int, factor: float, session: int
) -> None:
    grown %= len(weights)
    before = chosen(weights, session)
    weights[grown] *= factor
    assert chosen(weights, session) in (before, f"p{grown}")


@settings_of_hypothesis(max_examples=50, deadline=None)
@given(st.floats(min_value=0, max_value=1e3), SESSIONS)
def test_a_session_on_the_canary_stays_there_through_every_step(third: float, session: int) -> None:
    """Also where a third pool of the model has a share, whatever it is."""
    steps = [chosen([100 - p, p, third], session) for p in (1, 5, 25, 100)]
    if "p1" in steps:
        assert set(steps[steps.index("p1") :]) == {"p1"}


def test_a_growing_canary_moves_no_session_back() -> None:
    sessions = [session_hash(0, "t", "named", str(i).encode()) for i in range(300)]
    steps = [{s for s in sessions if chosen([100 - p, p], s) == "p1"} for p in (1, 5, 25, 100)]
    assert steps[0] <= steps[1] <= steps[2] <= steps[3]
    assert 50 <= len(steps[2]) <= 100
    assert len(steps[3]) == 300


def test_where_a_session_lies_says_nothing_about_its_version() -> None:
    """A canary's sessions must not all lie on one arc of its own ring."""
    step = 2**64 // 400
    of_canary = [i for i in range(400) if chosen([75, 25], i * step) == "p1"]
    assert any(i < 100 for i in of_canary)
    assert any(i > 300 for i in of_canary)


def test_names_and_aliases_lead_to_the_model() -> None:
    compiled = compile_table(table(models=(model("m", aliases=("chat", "m2")),)))
    assert set(compiled.names) == {"m", "chat", "m2"}
    assert compiled.names["chat"] is compiled.models["m"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"pools": (pool(), pool())}, "pool 'p': name is empty or used twice"),
        ({"pools": (pool(), pool("", size=0))}, "pool '': name is empty"),
        ({"models": (model(), model())}, "model 'm': name is empty or used twice"),
        ({"models": (model(), model("n", share("q")))}, "no pool 'q'"),
        ({"models": (model(aliases=("m",)), model("n", aliases=("m",)))}, "alias 'm'"),
        ({"models": (model(aliases=("",)),)}, "alias '' is already taken"),
        ({"api_keys": (wire.ApiKey(id="k", sha256="zz", tenant="t"),)}, "not a SHA-256"),
        ({"api_keys": (wire.ApiKey(id="k", sha256="ab", tenant="t"),)}, "not a SHA-256"),
        ({"api_keys": (wire.ApiKey(id="k", sha256=SHA, tenant="t"),)}, "no tenant 't'"),
        ({"pools": (pool(fallback_pool="q"),)}, "no fallback pool 'q'"),
        ({"pools": (pool(settings=settings(extra_paths=("/sleep",))),)}, "management call"),
        (
            {"pools": (pool(), pool("q", endpoints=(endpoint("p0"),)))},
            "replica 'p0': id is empty or used twice",
        ),
        ({"pools": (pool(), pool("q", endpoints=(endpoint("a\nb"),)))}, "no header may carry"),
        (
            {"pools": (pool(), pool("q", endpoints=(endpoint(credential="a\r\nb"),)))},
            "credential has characters",
        ),
        ({"pools": (pool(), pool("q", endpoints=(endpoint(url="nope"),)))}, "not http(s)"),
    ],
)
def test_a_bad_row_is_left_out_and_named(changes: dict[str, object], fault: str) -> None:
    """Section 4: one bad row never empties the table."""
    compiled = compile_table(table(**changes))
    assert any(fault in text for text in compiled.faults)
    assert "p" in compiled.pools
    assert "m" in compiled.models
    assert len(compiled.pools["p"].endpoints) == 3


def test_good_keys_lead_to_their_tenants() -> None:
    tenant = wire.Tenant(name="t")
    key = wire.ApiKey(id="k", sha256=SHA.upper(), tenant="t", expires_at=5.0)
    compiled = compile_table(table(tenants=(tenant,), api_keys=(key,)))
    owner = compiled.keys[hashlib.sha256(b"k").digest()]
    assert (owner.key_id, owner.tenant, owner.expires_at) == ("k", tenant, 5.0)


def test_open_tables_have_a_local_tenant() -> None:
    assert "local" in compile_table(table(open_access=True)).tenants
    assert "local" not in compile_table(table()).tenants


def test_a_known_fallback_and_paths_are_kept() -> None:
    first = pool(fallback_pool="q", settings=settings(extra_paths=("/v1/audio",)))
    compiled = compile_table(table(first, pool("q")))
    assert compiled.faults == ()
    assert compiled.pools["p"].fallback_pool == "q"
    assert compiled.extra_paths == {"/v1/audio"}


@given(st.text(), st.text(), st.binary(), st.binary())
def test_tenants_never_share_a_session(a: str, b: str, one: bytes, two: bytes) -> None:
    if (a, one) != (b, two) and "\x00" not in a + b:
        assert session_hash(0, a, "named", one) != session_hash(0, b, "named", two)
    assert session_hash(0, a, "named", one) != session_hash(0, a, "found", one)
    assert session_hash(0, a, "named", one) != session_hash(1, a, "named", one)


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("http://a:1", "a", 1, False),
        ("https://a", "a", 443, True),
        ("http://a", "a", 80, False),
        ("http://[::1]:9001", "::1", 9001, False),
        ("http://a:1/", "a", 1, False),
    ],
)
def test_addresses_are_taken_apart(url: str, host: str, port: int, tls: bool) -> None:
    """R27: IPv6 included."""
    found = parse_url(url)
    assert (found.host, found.port, found.is_tls) == (host, port, tls)
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    "url",
    ["http://::1:9001", "a:1", "ftp://a:1", "http://a:1/x", "http://a:1?x", "http://u:p@a:1",
     "http://a:x", "http://", "http://a:1\r\nx: y", "http://ä:1", "http://a:99999"],
)  # fmt: skip
def test_bad_addresses_are_refused(url: str) -> None:
    """R27: the ambiguous form too."""
    assert url_fault(url)


@pytest.mark.parametrize(
    "path",
    ["v1/x", "/v1/load_lora_adapter", "/V1/LOAD_LORA_ADAPTER", "/%6coad", "//x", "/a/../sleep",
     "/x?y", "/x y", "/ü", "/a;b", "/wake_up", "/metrics"],
)  # fmt: skip
def test_no_pool_may_add_a_management_path(path: str) -> None:
    assert extra_path_fault(path)


def test_inference_paths_may_be_added() -> None:
    assert extra_path_fault("/v1/audio/transcriptions") == ""


def test_the_last_session_of_all_has_a_pool() -> None:
    """The largest hash rounds to 1.0, which lies outside every share."""
    shares = (share("a", 1), share("b", 1))
    compiled = compile_table(table(pool("a"), pool("b"), models=(model("m", *shares),)))
    assert compiled.models["m"].pool_for(2**64 - 1) == "b"
