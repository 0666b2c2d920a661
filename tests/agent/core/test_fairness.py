"""Fair shares in a pool's queue: nobody's burst is everybody's wait."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.core import fairness
from routing_agent.core.fairness import FairShares, weighted
from routing_agent.core.waiting import WaitingLine, Wants

PROMPT, OUTPUT = 100, 50
COST = weighted(PROMPT, OUTPUT)


def wants(tenant: str, since: float = 0.0, *, priority: int = 5, prompt: int = PROMPT) -> Wants:
    return Wants(priority, since, tenant, prompt, OUTPUT)


def serve(line: WaitingLine[str], prompt: int = PROMPT) -> str:
    """Give the next one its turn and room, as the proxy does."""
    tenant = line.next()
    assert tenant is not None
    charge = line.shares.serve(tenant, prompt, OUTPUT)
    line.shares.settle(tenant, charge, prompt, OUTPUT)
    return tenant


def joined(*tenants: str) -> WaitingLine[str]:
    line: WaitingLine[str] = WaitingLine()
    for i, tenant in enumerate(tenants):
        line.join(tenant, wants(tenant, float(i)))
    return line


def test_two_backlogged_tenants_take_turns_however_many_wait():
    line = joined(*["a"] * 20, *["b"] * 3)
    assert Counter(serve(line) for _ in range(6)) == {"a": 3, "b": 3}


def test_a_burst_delays_another_tenant_by_one_service():
    line = joined(*["a"] * 50)
    for _ in range(10):
        serve(line)
    line.join("b", wants("b", 99.0))
    assert "b" in [serve(line), serve(line)]


def test_nobody_saves_up_while_asking_for_nothing():
    line = joined(*["a"] * 30)
    for _ in range(10):
        serve(line)
    for i in range(10):
        line.join("late", wants("late", 50.0 + i))
    served = Counter(serve(line) for _ in range(10))
    assert abs(served["a"] - served["late"]) <= 1


def test_who_comes_to_an_empty_queue_is_lifted_to_who_left_it_last():
    line = joined("a")
    serve(line)
    line.join("b", wants("b"))
    assert line.shares.counter("b") == line.shares.counter("a") == COST


def test_a_more_urgent_priority_goes_first_whoever_was_served_more():
    line = joined("a", "a")
    line.shares.serve("urgent", 10_000, 0)
    line.join("urgent", wants("urgent", 9.0, priority=0))
    assert serve(line) == "urgent"


def test_a_turn_without_room_costs_nothing():
    line = joined("a", "b")
    line.shares.serve("b", 1000, 0)
    before = line.shares.counters()
    assert line.next() == "a"
    line.ready("a", wants("a"), ticket=0, returns=True)
    assert line.shares.counters() == before
    assert line.next() == "a"


def test_of_one_tenant_the_short_ones_overtake_long_ones_for_a_while():
    line: WaitingLine[str] = WaitingLine()
    line.join("long", wants("a", 0.0, prompt=20_000))
    line.join("soon after", wants("a", 1.0))
    line.join("too late to overtake", wants("a", 3.0))
    assert [line.next() for _ in range(3)] == ["soon after", "long", "too late to overtake"]


def test_a_charge_is_corrected_by_what_was_used_and_teaches_what_to_expect():
    shares = FairShares()
    charged = shares.serve("a", 100, 1000)
    shares.settle("a", charged, 90, 10)
    assert shares.counter("a") == weighted(90, 10)
    assert shares.serve("a", 100, 1000) == weighted(100, 10)
    shares.settle("a", 0.0, 0, 20)
    assert shares.serve("a", 0, 1000) == weighted(0, 11)


def test_a_failed_request_that_used_nothing_costs_nothing():
    shares = FairShares()
    shares.settle("a", shares.serve("a", 100, 50), 0, 0)
    assert shares.counter("a") == 0.0


def test_a_correction_for_a_forgotten_tenant_is_dropped():
    shares = FairShares()
    shares.settle("gone", 10.0, 5, 5)
    assert len(shares) == 0


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(fairness, "REMEMBERED", 8)
    line = joined(*["busy"] * 100)
    for _ in range(5):
        serve(line)
    for i in range(60):
        line.join(f"t{i}", wants(f"t{i}"))
        while line.next() != f"t{i}":
            pass
        line.join("busy", wants("busy"))
        line.shares.serve("busy", 500, 0)
    assert len(line.shares) <= 10


def test_who_waits_is_counted_by_tenant_and_those_who_left_are_not():
    line = joined("a", "a", "b")
    line.leave(0)
    assert line.by_tenant() == {"a": 1, "b": 1}
    assert sorted(line.waiting()) == ["a", "b"]
    assert [line.next(), line.next(), line.next()] == ["a", "b", None]


def test_a_tenant_that_waits_with_two_priorities_is_lifted_once():
    line = joined(*["a"] * 4)
    line.join("b", wants("b", priority=7))
    serve(line)
    line.join("b", wants("b", priority=5))
    assert line.shares.counter("b") == 0.0


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 400)), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_the_line_conserves_work_and_the_difference_of_backlogged_tenants_is_bounded(jobs, chance):
    """Whoever waits is served as long as there is anybody; of two tenants that both wait all the
    time, neither is served more than two of the largest requests ahead of the other."""
    line: WaitingLine[tuple[str, int]] = WaitingLine()
    backlog = Counter()
    for i, (tenant, prompt) in enumerate(jobs):
        line.join((tenant, prompt), Wants(5, float(i), tenant, prompt, 0))
        backlog[tenant] += 1
    largest = max(prompt for _, prompt in jobs)
    served = Counter()
    for left in range(len(jobs), 0, -1):
        assert len(line) == left
        item = line.next()
        assert item is not None
        tenant, prompt = item
        line.shares.settle(tenant, line.shares.serve(tenant, prompt, 0), prompt, 0)
        served[tenant] += prompt
        backlog[tenant] -= 1
        waiting = [t for t, n in backlog.items() if n]
        for one in waiting:
            for other in waiting:
                assert served[one] - served[other] <= 2 * largest
    assert line.next() is None
