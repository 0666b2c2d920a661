"""Limits over several agents: nothing that is lost, late or repeated makes more than there is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain import quotas
from controlplane.domain.quota_use import LimitLine, use
from controlplane.domain.quotas import Caller, Ledger, lease, shares
from routing_agent import wire
from routing_agent.core.limits import TenantGate

NAMES = st.sampled_from(["a", "b", "c"])


@given(
    st.integers(0, 1000),
    st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 2000), min_size=1, max_size=9),
)
def test_shares_sum_exactly_to_the_limit(limit: int, demands: dict[str, int]) -> None:
    given_ = shares(limit, demands)
    assert sum(given_.values()) == limit
    assert min(given_.values()) >= 0
    unmet = {n for n in demands if given_[n] < demands[n]}
    for name in unmet:  # nobody gets more than one who lacks something, but for what is left over
        assert all(given_[other] <= given_[name] + 1 for other in demands)


def test_a_limit_below_the_number_of_agents_has_one_home() -> None:
    assert shares(1, {"a": 9, "b": 9, "c": 9}) == {"a": 0, "b": 0, "c": 1}
    assert shares(0, {"a": 1}) == {"a": 0}
    assert shares(5, {}) == {}


def test_shares_follow_demand() -> None:
    assert shares(10, {"busy": 50, "idle": 1}) == {"busy": 9, "idle": 1}
    assert shares(10, {"busy": 50, "idle": 0}) == {"busy": 10, "idle": 0}
    assert shares(5, {"a": 25, "b": 25}) == {"a": 2, "b": 3}


class Agents:
    """Agents over one ledger, with a network that loses and repeats."""

    def __init__(self, limits: wire.TenantLimits) -> None:
        self.limits = limits
        self.ledger = Ledger()
        self.now = 1000.0
        self.gates: dict[str, TenantGate] = {}
        self.marks: dict[str, list[int]] = {}
        self.pending: dict[str, tuple[Caller, wire.LeaseAsk]] = {}
        self.sent: list[tuple[Caller, wire.LeaseAsk]] = []
        self.admitted: list[float] = []
        self.spent = 0

    def gate(self, name: str) -> TenantGate:
        if name not in self.gates:
            self.gates[name] = TenantGate(self.limits, self.now)
            self.marks.setdefault(name, [0, 0])[0] += 1
        return self.gates[name]

    def arrive(self, name: str, tokens: int = 10) -> bool:
        admission = self.gate(name).admit(tokens, self.now)
        if admission.admitted:
            self.admitted.append(self.now)
            self.spent += tokens
        return admission.admitted

    def finish(self, name: str, *, used: int = 10) -> None:
        gate = self.gate(name)
        if gate.running:
            gate.release(charged=10, used=used)
            self.spent += used - 10

    def call(self, name: str, waiting: int = 0, *, fate: str = "ok") -> None:
        gate = self.gate(name)
        assert gate.share is not None
        if name not in self.pending:
            ask = gate.share.ask(
                "acme", self.limits, (waiting, 10 * waiting), gate.running, self.now
            )
            self.marks[name][1] += 1
            self.pending[name] = (Caller(agent=name, start=self.marks[name][0],
                                         serial=self.marks[name][1]), ask)  # fmt: skip
        caller, ask = self.pending[name]
        self.sent.append((caller, ask))
        if fate == "lost":
            return
        grant = self.serve(caller, ask)
        if fate == "ok":
            del self.pending[name]
            gate.share.granted(ask, grant, self.now, self.now)

    def serve(self, caller: Caller, ask: wire.LeaseAsk) -> wire.LeaseGrant:
        told = quotas.lease(self.ledger, self.limits, ask, caller=caller, now=self.now)
        stored = msgspec.json.encode(told.ledger)
        self.ledger = msgspec.json.decode(stored, type=Ledger)
        return told.grant

    def die(self, name: str) -> None:
        self.gates.pop(name, None)
        self.pending.pop(name, None)

    def running(self) -> int:
        return sum(gate.running for gate in self.gates.values())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), NAMES),
        st.tuples(st.just("finish"), NAMES),
        st.tuples(st.just("call"), NAMES, st.integers(0, 8),
                  st.sampled_from(["ok", "ok", "ok", "lost", "unanswered"])),
        st.tuples(st.just("burst"), NAMES, st.integers(1, 8)),
        st.tuples(st.just("again"), st.integers(0, 50)),
        st.tuples(st.just("pass"), st.sampled_from([0.01, 0.3, 2.0])),
        st.tuples(st.just("die"), NAMES),
    ),
    max_size=80,
)  # fmt: skip


def play(agents: Agents, step: tuple) -> None:  # type: ignore[type-arg]
    match step:
        case ("arrive", name):
            agents.arrive(name)
        case ("finish", name):
            agents.finish(name)
        case ("call", name, waiting, fate):
            agents.call(name, waiting, fate=fate)
        case ("burst", name, count):
            agents.call(name, count)
            for _ in range(count):
                agents.arrive(name)
        case ("again", number) if agents.sent:  # an old message comes late
            agents.serve(*agents.sent[-1 - number % len(agents.sent)])
        case ("pass", seconds):
            agents.now += seconds
        case ("die", name):
            agents.die(name)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 6))
def test_no_concurrency_limit_is_passed_whatever_the_network_does(steps: list, limit: int) -> None:  # type: ignore[type-arg]
    agents = Agents(wire.TenantLimits(concurrency=limit, leased=True))
    for step in steps:
        play(agents, step)
        for name, gate in agents.gates.items():  # leases are renewed, as the agent does
            if gate.running and gate.share and agents.now >= gate.share.until - 5:
                agents.call(name)
                agents.call(name)
        assert agents.running() <= limit
        assert sum(h.slots for h in quotas.live(agents.ledger, agents.now).values()) <= limit


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(0, 6))
def test_no_rate_limit_is_passed_whatever_the_network_does(steps: list, limit: int) -> None:  # type: ignore[type-arg]
    agents = Agents(
        wire.TenantLimits(requests_per_minute=limit, tokens_per_minute=10 * limit, leased=True)
    )
    for step in steps:
        play(agents, step)
        passed_s = agents.now - 1000.0
        allowed = limit * (1 + passed_s / 60.0) + 1e-6
        assert len(agents.admitted) <= allowed
        assert agents.spent <= 10 * allowed


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_fifty_at_once_fill_the_limit_over_one_agent_or_two(limit: int) -> None:
    agents = Agents(wire.TenantLimits(concurrency=limit, leased=True))
    for split in ((50, 0), (25, 25), (0, 50), (50, 0)):
        for name, count in zip("ab", split, strict=True):
            if count:
                agents.call(name, count)
                for _ in range(count):
                    agents.arrive(name)
        assert agents.running() == limit
        for name in "ab":
            while agents.gate(name).running:
                agents.finish(name)
        for _ in range(2):  # two windows without a request, and all is back
            agents.now += 0.3
            for name, gate in agents.gates.items():
                assert gate.share is not None
                if gate.share.is_due(agents.limits, gate.running, agents.now):
                    agents.call(name)
        assert not any(h.slots for h in agents.ledger.holdings.values())


def test_an_agent_that_waits_gets_its_share_from_one_that_has_all() -> None:
    agents = Agents(wire.TenantLimits(concurrency=4, leased=True))
    agents.call("a", 4)
    assert [agents.arrive("a") for _ in range(5)] == [True] * 4 + [False]
    agents.call("b", 9)
    assert not agents.arrive("b")
    agents.call("a")
    agents.finish("a")
    assert not agents.arrive("a"), "it has more than its share while another waits"
    agents.finish("a")
    agents.now += 0.1
    agents.call("a")
    agents.call("b", 9)
    assert [agents.arrive("b") for _ in range(3)] == [True, True, False]


def test_what_an_agent_that_died_held_is_free_when_its_lease_has_run_out() -> None:
    agents = Agents(wire.TenantLimits(concurrency=3, leased=True))
    agents.call("a", 3)
    assert all(agents.arrive("a") for _ in range(3))
    agents.die("a")
    agents.call("b", 3)
    assert not agents.arrive("b")
    agents.now += wire.LEASE_S + 0.1
    agents.call("b", 3)
    assert all(agents.arrive("b") for _ in range(3))


def test_a_message_that_was_overtaken_frees_nothing() -> None:
    agents = Agents(wire.TenantLimits(concurrency=2, requests_per_minute=9, leased=True))
    agents.call("a")
    agents.call("a", 2)
    assert all(agents.arrive("a") for _ in range(2))
    before = agents.ledger
    agents.serve(*agents.sent[0])
    assert agents.ledger == before
    agents.call("b", 1)
    assert not agents.arrive("b")


def test_a_repeated_call_is_booked_once_and_answered_alike() -> None:
    agents = Agents(wire.TenantLimits(concurrency=4, requests_per_minute=9, leased=True))
    agents.call("a", 3, fate="unanswered")
    first = agents.ledger
    agents.now += 0.0
    agents.call("a", 3)
    assert agents.ledger == first
    assert [agents.arrive("a") for _ in range(4)] == [True] * 3 + [False]
    assert agents.ledger.requests is not None
    assert agents.ledger.requests.level == 6


def test_a_restarted_agent_gives_up_what_it_held_before() -> None:
    agents = Agents(wire.TenantLimits(concurrency=3, leased=True))
    agents.call("a", 3)
    agents.die("a")
    agents.call("a", 1)
    agents.call("b", 2)
    assert all(agents.arrive(name) for name in "abb")


@pytest.mark.parametrize("step_s", [3600.0, -3600.0])
def test_a_control_plane_whose_clock_is_stepped_holds_no_slot_for_ever(step_s: float) -> None:
    agents = Agents(wire.TenantLimits(concurrency=2, requests_per_minute=2, leased=True))
    agents.call("a", 2)
    agents.die("a")
    agents.now += step_s
    agents.call("b", 2)
    agents.now += wire.LEASE_S + 0.1
    agents.call("b", 2)
    assert agents.gate("b").share.slots == 2  # type: ignore[union-attr]


def test_a_changed_limit_keeps_what_is_used() -> None:
    agents = Agents(wire.TenantLimits(requests_per_minute=10, leased=True))
    agents.call("a", 8)
    more = wire.TenantLimits(requests_per_minute=12, leased=True)
    grown = quotas.aged(agents.ledger, more, agents.now)
    assert grown.requests is not None
    assert grown.requests.level == 4
    less = quotas.aged(
        grown, wire.TenantLimits(requests_per_minute=5, leased=True), agents.now
    ).requests
    assert less is not None
    assert less.level == -3


def test_without_an_answer_the_declared_rule_holds_once_the_lease_has_run_out() -> None:
    for rule, expected in (("open", 2), ("closed", 0)):
        limits = wire.TenantLimits(concurrency=2, leased=True, when_unreachable=rule)  # type: ignore[arg-type]
        agents = Agents(limits)
        agents.call("a", 1)
        gate = agents.gate("a")
        assert gate.share is not None
        gate.share.gone_at = agents.now
        assert agents.arrive("a"), "the last share is kept until it expires"
        agents.finish("a")
        agents.now += wire.LEASE_S
        assert sum(agents.arrive("a") for _ in range(5)) == expected
        if rule == "closed":
            refused = gate.admit(1, agents.now)
            assert refused.limit == "concurrency"
            assert "out of reach" in refused.reason
            assert not refused.may_lease


def test_a_tenant_reads_each_of_its_limits_with_what_is_left_and_who_has_the_rest():
    limits = wire.TenantLimits(concurrency=5, requests_per_minute=60, leased=True)
    nobody = use(Ledger(), limits, 100.0)
    assert [(line.name, line.taken, line.left) for line in nobody.lines] == [
        ("concurrency", 0, 5),
        ("requests", 0, 60),
    ]
    assert nobody.lines[0].who == "nothing is running"
    assert use(Ledger(), wire.TenantLimits(leased=True), 100.0).is_unlimited
    caller = Caller(agent="a", start=1, serial=1)
    ask = wire.LeaseAsk(tenant="t", more_slots=3, requests=4)
    held = lease(Ledger(), limits, ask, caller=caller, now=100.0).ledger
    told = use(held, limits, 100.0)
    slots, requests = told.lines
    assert (slots.taken, slots.left) == (3, 2)
    assert slots.who == "0 running, 3 held ready by 1 agent"
    assert (requests.taken, requests.left) == (4, 56)
    assert (told.tightest, slots.code) == (slots, "ok")
    assert use(Ledger(), wire.TenantLimits(leased=True), 100.0).tightest is None


@pytest.mark.parametrize(
    ("allowed", "taken", "ratio", "code"),
    [
        (10, 7, 0.7, "ok"),
        (10, 8, 0.8, "warning"),
        (10, 12, 1.0, "exhausted"),
        (0, 0, 1.0, "exhausted"),
    ],
)
def test_a_limit_says_how_near_its_end_it_is(allowed, taken, ratio, code):
    left = max(allowed - taken, 0)
    line = LimitLine(name="x", label="x", allowed=allowed, taken=taken, left=left, who="")
    assert (line.used_ratio, line.code) == (ratio, code)
