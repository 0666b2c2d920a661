"""What the processes of one agent share: rings, limits, load, queues; one process plays all."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing_agent.core.fairness import FairShares
from routing_agent.core.policy import RouteRequest
from routing_agent.core.replica_report import report_of
from routing_agent.core.waiting import Wants
from routing_agent.metrics import FinishedRequest
from routing_agent.wire import PoolSettings, TenantLimits
from routing_agent.workers import messages as say
from routing_agent.workers.counts import read, written
from routing_agent.workers.fleet import SharedFleet, SharedPool
from routing_agent.workers.gate import SharedGate
from routing_agent.workers.line import Places, SharedLine
from routing_agent.workers.memory import RING_BYTES, SUPERVISOR, SharedMemory
from routing_agent.workers.placed import Placed
from routing_agent.workers.replica import SharedReplica
from routing_agent.workers.ring import Ring
from routing_agent.workers.slots import SlotGiver
from tests.agent.control.tables import a_table

CHANCE = random.Random(1)
URLS = ("http://127.0.0.1:9", "http://127.0.0.1:10")


@pytest.fixture
def memory():
    shared = SharedMemory.create(3)
    yield shared
    shared.close()


def fleets(memory, **pool_settings):
    """Give the fleets of a supervisor and three workers, with one table."""
    table = a_table(urls=URLS)
    pool = table.pools[0]
    pool = type(pool)(
        **{f: getattr(pool, f) for f in pool.__struct_fields__}
        | {"settings": PoolSettings(slow_start_s=0, **pool_settings)}
    )
    table = type(table)(
        **{f: getattr(table, f) for f in table.__struct_fields__} | {"pools": (pool,)}
    )
    slots = SlotGiver(memory).follow(table)
    made = [SharedFleet(memory, number) for number in (SUPERVISOR, 0, 1, 2)]
    for fleet in made:
        fleet.slots = slots
        fleet.apply(table, now=1.0, wall=1.0)
        for replica in fleet.replicas.values():
            replica.note_health(True, "answers", 1.0)
    return made


prompts = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=5000), st.booleans()
    ),
    max_size=60,
)


@settings(max_examples=25, deadline=None)
@given(prompts)
def test_whoever_keeps_up_reads_what_was_written_and_nobody_reads_anything_else(written):
    memory = SharedMemory.create(1)
    try:
        writer, reader = Ring(memory, 0), Ring(memory, 0)
        expected, found = [], []
        for session, blocks, looks in written:
            writer.write(Placed(3, 7, session, len(blocks), 5, 1.5, blocks))
            expected.append((3, 7, session, len(blocks), 5, 1.5, blocks[:4096]))
            if looks:
                found += [told(placed) for placed in reader.read()]
        found += [told(placed) for placed in reader.read()]
        if reader.lost:  # it fell behind: what it has is true, and the newest comes through again
            assert all(one in expected for one in found)
            writer.write(Placed(1, 2, 3, 0, 0, 0.0, ()))
            assert [placed.session for placed in reader.read()] == [3]
        else:
            assert found == expected
    finally:
        memory.close()


def told(placed):
    names = (placed.pool, placed.replica, placed.session)
    return (*names, placed.inserted_blocks, placed.work_tokens, placed.block_tokens, placed.blocks)


def test_a_torn_record_is_skipped_and_counted(memory):
    writer, reader = Ring(memory, 0), Ring(memory, 0)
    writer.write(Placed(0, 0, 1, 2, 2, 1.0, [11, 22]))
    memory.bytes[(memory.ring(0) + 8) * 8 + 20] ^= 1
    assert list(reader.read()) == []
    assert reader.lost == 1
    writer.write(Placed(0, 0, 2, 0, 0, 1.0, []))
    assert [placed.session for placed in reader.read()] == [2]


def test_a_ring_goes_round(memory):
    writer, reader = Ring(memory, 1), Ring(memory, 1)
    blocks = list(range(4096))
    for number in range(3 * RING_BYTES // (8 * 4096)):
        writer.write(Placed(0, 0, number, 0, 0, 1.0, blocks))
        assert [(one.session, one.blocks) for one in reader.read()] == [(number, blocks)]
    assert reader.lost == 0


def test_limits_are_those_of_all_processes_and_follow_the_table(memory):
    limits = TenantLimits(concurrency=3, requests_per_minute=5, tokens_per_minute=600)
    master = SharedGate(limits, 0.0, memory, 0, SUPERVISOR)
    gates = [SharedGate(limits, 0.0, memory, 0, number) for number in range(3)]
    assert [gate.admit(100, 0.0).admitted for gate in gates] == [True] * 3
    assert gates[0].admit(100, 0.0).limit == "concurrency"
    gates[1].release(charged=100, used=50)  # 50 tokens come back
    assert gates[2].admit(400, 0.0).limit == "tokens_per_minute"
    assert gates[2].admit(100, 0.0).admitted
    gates[0].release(charged=100, used=100)
    assert gates[0].admit(1, 0.0).admitted
    gates[0].release(charged=1, used=1)
    assert gates[1].admit(1, 0.0).limit == "requests_per_minute"
    assert gates[1].admit(1, 24.0).admitted  # two of five have come back
    more = TenantLimits(concurrency=4)
    for gate in (master, *gates):
        gate.adopt(more, 24.0)
    assert gates[0].admit(9999, 24.0).admitted
    assert gates[0].admit(9999, 24.0).limit == "concurrency"
    memory.forget_worker(2, (0, 1, 0))  # it was killed with two of them
    assert [gates[0].admit(1, 24.0).admitted for _ in range(3)] == [True, True, False]
    for gate in (master, *gates):
        gate.adopt(TenantLimits(), 24.0)
    assert gates[1].admit(1, 24.0).admitted


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(("admit", "admit", "release", "settle"))),
    min_size=50, max_size=300,
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(steps, st.sampled_from((1, 5, 90, 200)), st.sampled_from((None, 150, 400)))
def test_places_taken_along_never_pass_a_limit_and_leave_none_over(steps, places, requests):
    memory = SharedMemory.create(3)
    try:
        limits = TenantLimits(concurrency=places, requests_per_minute=requests)
        SharedGate(limits, 0.0, memory, 0, SUPERVISOR)
        gates = [SharedGate(limits, 0.0, memory, 0, number) for number in range(3)]
        running, admitted = [0, 0, 0], 0
        for number, step in steps:
            if step == "admit" and gates[number].admit(10, 0.0).admitted:
                running[number] += 1
                admitted += 1
            elif step == "release" and running[number]:
                gates[number].release(charged=10, used=10)
                running[number] -= 1
            elif step == "settle":
                gates[number].settle()
            assert sum(running) <= places
            assert admitted <= (requests or admitted)
        for gate in gates:
            gate.settle()
        more = 0
        while gates[0].admit(10, 0.0).admitted:
            more += 1
        left = places - sum(running)
        assert more == (left if requests is None else min(left, requests - admitted))
    finally:
        memory.close()


def test_what_a_lease_call_brought_is_kept_for_who_waited(memory):
    limits = TenantLimits(concurrency=9, leased=True)
    master = SharedGate(limits, 0.0, memory, 0, SUPERVISOR)
    mine, other = (SharedGate(limits, 0.0, memory, 0, number) for number in (0, 1))
    assert mine.admit(1, 0.0).may_lease
    master.hold()
    master.share.slots, master.share.until = 1, 60.0
    master.let_go()
    assert master.keep(1, 1.0, 0)
    assert not other.admit(1, 1.0).admitted  # however quick
    mine.expect_kept()
    assert mine.admit(1, 1.0).admitted
    mine.give_kept_back(1)  # it was taken: nothing to give back
    assert not other.admit(1, 1.0).admitted
    mine.release(charged=1, used=1)
    assert master.keep(1, 1.0, 0)
    mine.expect_kept()
    mine.give_kept_back(1)  # its client has left
    assert other.admit(1, 1.0).admitted


def test_load_prompts_and_places_are_seen_by_all_and_given_back_by_the_dead(memory):
    supervisor, *workers = fleets(memory, max_concurrency_per_replica=2, policy="expected_ttft")
    replicas = [fleet.replicas["r0"] for fleet in workers]
    assert all(isinstance(replica, SharedReplica) for replica in replicas)
    request = RouteRequest(10, 7, prompt_tokens=10_000, blocks=[1, 2, 3], block_tokens=60.0)
    pools = [fleet.pools["chat"] for fleet in workers]
    assert all(isinstance(pool, SharedPool) for pool in pools)
    assert pools[0].siblings is pools[0]
    first = pools[0].choose(request, now=1.0, chance=CHANCE).replica
    first.begin(10, 1.0)
    pools[0].note_placed(request, first, now=1.0)
    # The others go where the prompt is, though they never saw it.
    again = [pool.choose(request, now=1.0, chance=CHANCE) for pool in pools[1:]]
    assert {choice.replica.id for choice in again[:1]} == {first.id}
    assert again[0].route == "affinity"
    again[0].replica.begin(10, 1.0)
    assert again[1].replica.id != first.id  # full: two are there
    theirs = workers[1].replicas[first.id]
    theirs.look()
    assert (theirs.inflight_requests, theirs.inflight_tokens) == (2, 20)
    # Its prompt is computed meanwhile, by the speed that is known.
    assert theirs.prefill.backlog_tokens(1.0) == pytest.approx(10_000)
    assert theirs.prefill.backlog_tokens(2.0) == pytest.approx(10_000 - 4300)
    assert theirs.tokens_of_others(1.0) == pytest.approx(10_000)
    supervisor.look()
    watched = report_of(supervisor.replicas[first.id], 1.0)
    assert (watched.inflight_requests, watched.prefix.waiting_prompts) == (2, 1)
    memory.forget_worker(0, (2, 0, 1))
    theirs.look()
    assert (theirs.inflight_requests, theirs.prefill.backlog_tokens(1.0)) == (1, 0.0)


def test_what_others_do_is_looked_at_once_in_a_while_but_nobody_waits_for_room_that_there_is(
    memory,
):
    supervisor, one, other, _ = fleets(memory, max_concurrency_per_replica=1)
    request = RouteRequest(10, 7, prompt_tokens=100, blocks=[1], block_tokens=60.0)
    mine, theirs = one.pools["chat"], other.pools["chat"]
    first = mine.choose(request, now=1.0, chance=CHANCE).replica
    first.begin(10, 1.0)
    mine.note_placed(request, first, now=1.0)
    last = mine.choose(request, now=1.0, chance=CHANCE).replica
    last.begin(10, 1.0)
    assert theirs.choose(request, now=1.0, chance=CHANCE).is_full
    last.release(10)
    found = theirs.choose(request, now=1.0001, chance=CHANCE)  # by new figures, before their time
    assert found.replica.id == last.id
    assert not theirs.look(1.0002)
    assert theirs.look(1.1)
    # A session that goes elsewhere is told as moved by who moved it, once.
    mine.note_placed(request, last, now=1.2)
    supervisor.bus.watch(1.2)
    assert theirs.look(1.3)
    assert theirs.sessions.moved_total == 1
    assert (other.take_moves(), one.take_moves(), one.take_moves()) == ({}, {"chat": 1}, {})
    assert supervisor.pools["chat"].sessions.moved_total == 0  # it is told of it


@given(st.lists(st.tuples(st.sampled_from(("a", "b")), st.integers(0, 9), st.booleans())))
def test_finished_requests_arrive_as_they_were(made):
    records = []
    for number, (tenant, tokens, has_begun) in enumerate(made):
        one = FinishedRequest(f"id-{number}", tenant=tenant, status=200, at=1.5 * number)
        one.pool, one.replica, one.stream = "chat", f"r{tokens % 2}", has_begun
        one.prompt_tokens, one.e2e_s = tokens, 0.5
        one.ttft_s = 0.25 if has_begun else None
        records.append(one)
    sent = msgspec.msgpack.encode(say.Finished(written(records)))
    alike = msgspec.msgpack.decode(sent, type=say.Finished).alike
    found = [read(common, own) for common, owns in alike for own in owns]
    assert sorted(map(fields_of, found)) == sorted(map(fields_of, records))


def fields_of(record):
    names = [n for n in dir(FinishedRequest) if not n.startswith("_")]
    return [repr(getattr(record, name)) for name in ("request_id", "tenant", "at", *names)]


def test_a_breaker_counts_what_requests_of_all_processes_met(memory):
    _, one, other, _ = fleets(memory)
    told = []
    one.replicas["r0"].publish = lambda *event: told.append(event)
    for second in range(5):
        one.replicas["r0"].begin(1, 10.0 + second)
        one.replicas["r0"].note_failure(10.0 + second, trial=False, may_open=True)
        one.replicas["r0"].release(1)
    replica = other.replicas["r0"]
    for _, verdict, at, how in told:
        replica.sibling_judged(verdict, at, how)
    assert replica.exclusion(15.0) == "breaker open"
    assert one.replicas["r0"].begin(1, 40.0)  # its trial
    replica.sibling_judged(*told[-1][1:])
    assert replica.exclusion(40.0) == "breaker open"  # one is enough
    one.replicas["r0"].note_abandoned(trial=True)
    replica.sibling_judged(*told[-1][1:])
    assert not replica.exclusion(40.0)
    for _ in range(2):
        one.replicas["r0"].note_success(41.0, trial=one.replicas["r0"].begin(1, 41.0))
        replica.sibling_judged(*told[-2][1:])
        replica.sibling_judged(*told[-1][1:])
    assert replica.breaker.state == one.replicas["r0"].breaker.state == "closed"


def test_a_queue_has_one_limit_and_room_goes_to_who_comes_first(memory):
    places = [Places(memory, 0, number) for number in range(3)]
    assert places[0].first() is None
    assert places[0].take(0, 2)
    places[0].tell(1, (1, 50.0, 7.0))
    assert places[1].take(0, 2)
    assert not places[2].take(0, 2)
    places[1].tell(1, (1, 20.0, 9.0))
    assert places[0].first() == 1  # served less so far
    places[1].tell(0, None)
    assert places[2].first() == 0
    assert places[2].take(0, 2)
    places[2].tell(1, (0, 99.0, 9.0))
    assert places[0].first() == 2  # more urgent
    places[2].tell(1, None)
    assert places[0].first() == 0  # a place that is only held has no turn yet


def test_who_finds_no_room_in_their_turn_never_lost_their_place(memory):
    places = [Places(memory, 0, number) for number in range(2)]
    line: SharedLine[str] = SharedLine(FairShares(), places[0])
    wants = Wants(0, 1.0)
    for waiting, name in enumerate(("first", "second")):
        assert places[0].take(waiting, 2)
        line.join(name, wants)
    assert line.next() == "first"
    assert not places[1].take(0, 2)  # it is tried at this moment
    line.ready("first", wants, ticket=0, returns=True)
    line.turns_over()
    assert not places[1].take(0, 2)
    assert line.next() == "first"  # and there is room for it now
    line.turns_over()
    assert places[1].take(0, 2)


def test_slots_are_given_again_when_nothing_of_the_old_runs(memory):
    giver = SlotGiver(memory)
    first = giver.follow(a_table(1, urls=URLS)).replicas
    memory.ints[memory.replica(first["r0|" + URLS[0]])] = 1  # still runs there
    for epoch in (2, 3, 4):
        slots = giver.follow(a_table(epoch, urls=URLS[1:])).replicas
    assert slots["r0|" + URLS[0]] == first["r0|" + URLS[0]]
    memory.ints[memory.replica(first["r0|" + URLS[0]])] = 0
    assert "r0|" + URLS[0] not in giver.follow(a_table(5, urls=URLS[1:])).replicas


def test_a_tenant_is_charged_in_all_queues(memory):
    _, one, other, _ = fleets(memory)
    mine, theirs = (fleet.pools["chat"].shares for fleet in (one, other))
    one.bus.on_charge = lambda _pool, tenant, amount: theirs.charged_elsewhere(tenant, amount)
    charged = mine.serve("acme", 100, 10)
    assert theirs.counter("acme") == mine.counter("acme") == charged
    mine.settle("acme", charged, 100, 40)
    assert theirs.counter("acme") == mine.counter("acme") > charged
