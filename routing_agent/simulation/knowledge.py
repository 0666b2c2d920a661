"""What an agent knows when it chooses: all there is, or what a real one could.

A policy asks the replicas of its pool, as it does live. Who fills in their figures makes the
difference: `Oracle` reads the engines at the moment of the choice; `OwnView` counts what its own
agent sent and looks at the engines' figures now and then, as a scrape does.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal, Protocol

from routing_agent.core.figures import EngineFigures
from routing_agent.core.fleet import PoolState
from routing_agent.core.gossip import Gossip, Told
from routing_agent.core.loads import COUNTED_BY, LEAST_PAUSE_S, LoadTeller, hear
from routing_agent.core.prefix_index import PrefixIndex
from routing_agent.core.profile import PrefixProfile
from routing_agent.core.replica import Replica
from routing_agent.core.speed import Speed
from routing_agent.simulation.flights import Flight
from routing_agent.simulation.sequences import Prefill
from routing_agent.simulation.virtual import VirtualEngines

KnowledgeName = Literal["oracle", "agent"]


class Truth:
    """What happens inside the engines, queues included, as no real agent could know it."""

    def __init__(self, engines: VirtualEngines) -> None:
        self._engines = engines
        count = len(engines.schedulers)
        self._queued_tokens = [0] * count  # uncached tokens of requests that wait
        self._promised: list[Counter[int]] = [Counter() for _ in range(count)]
        self.speed = Speed()
        for _ in range(_CERTAIN):
            self.speed.note(round(engines.schedulers[0].profile.prefill_tokens_per_s * 99), 99.0)
        self.index = PrefixIndex()  # one for all oracles
        self.profiles = [PrefixProfile(_UNBOUNDED) for _ in range(count)]
        for engine, scheduler in enumerate(engines.schedulers):
            scheduler.pool.evicted = partial(self._evicted, engine)

    @property
    def versions(self) -> Sequence[int]:
        """A number for each engine that grows with whatever happens there."""
        return self._engines.versions

    def expected_cached_tokens(self, engine: int, blocks: tuple[int, ...]) -> int:
        """Tell how much of a prompt an engine has cached, or will have once its turn comes."""
        scheduler = self._engines.schedulers[engine]
        return self.profiles[engine].matching(blocks) * scheduler.profile.block_tokens

    def backlog(self, engine: int) -> tuple[int, Prefill]:
        """Give the requests inside an engine, and the prompt tokens it has yet to compute."""
        scheduler = self._engines.schedulers[engine]
        batch = scheduler.prefill()
        queued = self._queued_tokens[engine]
        return scheduler.running + scheduler.waiting, batch._replace(left=batch.left + queued)

    def submitted(self, engine: int, flight: Flight) -> None:
        """Note that an engine was given a request."""
        self._queued_tokens[engine] += flight.expected_uncached_tokens
        if self._engines.schedulers[engine].profile.prefix_cache:
            self._promised[engine].update(flight.request.blocks)
            self.profiles[engine].insert(flight.request.blocks, flight.request.at_s)

    def started(self, engine: int, flight: Flight) -> None:
        """Note that a request left the queue: the batch tells what is left of it."""
        self._queued_tokens[engine] -= flight.expected_uncached_tokens

    def computed(self, engine: int, flight: Flight) -> None:
        """Note that a prompt is through: the cache tells what is left of it."""
        promised, pool = self._promised[engine], self._engines.schedulers[engine].pool
        for block in reversed(flight.request.blocks):
            if block in promised:
                promised[block] -= 1
                if not promised[block]:
                    del promised[block]
                    if block not in pool:
                        self.profiles[engine].forget((block,))

    def _evicted(self, engine: int, block: int) -> None:
        if block not in self._promised[engine]:
            self.profiles[engine].forget((block,))


_CERTAIN = 9  # long measurements: nothing is left of what was believed before
_UNBOUNDED = 1 << 60  # what is forgotten is what its engine evicted


class Knowledge(Protocol):
    """Keeps the replicas of one agent's pool informed."""

    def next_look(self) -> float:
        """Tell when `look` is due; infinity is never."""
        ...

    def look(self, now: float) -> None:
        """Look at the engines that are due."""
        ...

    def before_choice(self, now: float) -> None:
        """Bring the replicas' figures up to date."""
        ...

    def placed(self, flight: Flight, now: float) -> None:
        """Note that this agent sent a request to a replica."""
        ...

    def answered(self, flight: Flight, now: float) -> None:
        """Note that a request of this agent got its first token."""
        ...

    def ended(self, flight: Flight) -> None:
        """Note that a request of this agent ended."""
        ...


class Exchange:
    """The control plane's part: each report's answer carries what the others told since."""

    def __init__(self) -> None:
        self._boxes: dict[int, list[tuple[str, dict[str, Told]]]] = {}
        self.loads = LoadTelling()

    def report(self, pool: PoolState, now: float) -> None:
        """Take what an agent has to tell, and give it what the others told."""
        heard = self._boxes.pop(id(pool), [])
        self._boxes[id(pool)] = []
        told = pool.tell(now)
        for agent, box in self._boxes.items():
            if agent != id(pool):
                box.append((str(id(pool)), told))
        for agent_name, one in heard:
            pool.hear(agent_name, one, now=now)


REPORT_INTERVAL_S = 2.0


class LoadTelling:
    """Agents tell one another their loads directly, as `control.peers` does over the network."""

    def __init__(self, interval_s: float = LEAST_PAUSE_S) -> None:
        self.interval_s = interval_s
        self._agents: list[tuple[PoolState, LoadTeller]] = []

    def join(self, pool: PoolState) -> int:
        """Take part; gives the number to tell under."""
        self._agents.append((pool, LoadTeller()))
        return len(self._agents) - 1

    def tell(self, number: int, now: float) -> float:
        """Let all others hear what one has under way; gives when to do so again."""
        pool, teller = self._agents[number]
        loads = teller.take(pool, now)
        if loads:
            for other, (their_pool, _) in enumerate(self._agents):
                if other != number:
                    hear(their_pool, str(number), loads, now)
        return max(teller.again_at, now + self.interval_s)


class Oracle:
    """Knows each engine exactly: requests inside, prompt tokens still to be computed.

    It looks again only where something happened or a prompt is under way: with a thousand engines
    the rest would cost more than all else.
    """

    def __init__(self, pool: PoolState, truth: Truth) -> None:
        self._replicas = pool.replicas
        self._truth = truth
        self._seen = [-1] * len(pool.replicas)
        self._under_way: dict[int, tuple[Replica, Prefill]] = {}
        self._pool = pool
        for replica, profile in zip(pool.replicas, truth.profiles, strict=True):
            profile.join(truth.index)
            replica.profile = profile
            replica.prefill.speed = truth.speed
            replica.prefill.look_again()

        pool.index = truth.index
        pool.numbered = {replica.profile.number: replica for replica in pool.replicas}

    def next_look(self) -> float:
        """It needs no looks: it knows."""
        return float("inf")

    def look(self, now: float) -> None:
        """Nothing is due, ever."""

    def before_choice(self, now: float) -> None:
        """Read every engine that may have changed."""
        for number, version in enumerate(self._truth.versions):
            if version != self._seen[number]:
                self._seen[number] = version
                self._read(number)
        for replica, prefill in self._under_way.values():
            replica.inflight_tokens = replica.prefill.queued_tokens = round(prefill.at(now))

    def _read(self, number: int) -> None:
        replica = self._replicas[number]
        replica.inflight_requests, prefill = self._truth.backlog(number)
        replica.inflight_tokens = replica.prefill.queued_tokens = prefill.left
        if prefill.left:
            self._under_way[number] = replica, prefill
        else:
            self._under_way.pop(number, None)

    def placed(self, flight: Flight, now: float) -> None:
        """Remember the session; the engine tells the rest, at the next choice."""
        if flight.replica is not None:
            lifetime_s = self._pool.settings.session_lifetime_s
            session, replica = flight.request.session, flight.replica
            self._pool.sessions.note(session, replica.id, now=now, lifetime_s=lifetime_s)
            replica.prefill.count_work(flight.expected_uncached_tokens, now)

    def answered(self, flight: Flight, now: float) -> None:
        """The engine tells, at the next choice."""

    def ended(self, flight: Flight) -> None:
        """The engine tells, at the next choice."""


class OwnView:
    """Charges its own requests, as the proxy does, and scrapes each engine once an interval."""

    def __init__(
        self,
        pool: PoolState,
        engines: VirtualEngines,
        chance: random.Random,
        exchange: Exchange | None = None,
        *,
        now: float = 0.0,
    ) -> None:
        self._pool = pool
        self._replicas = pool.replicas
        self._engines = engines
        self._interval_s = pool.settings.scrape_interval_s
        self._exchange = exchange
        self._tells_at = now + chance.random() * REPORT_INTERVAL_S
        self._number: int | None = None  # among those that tell their load
        self._tells_load_at = float("inf")  # while there is nothing to tell
        if exchange is not None:
            pool.gossip = Gossip()
            if pool.settings.policy in COUNTED_BY:
                self._number = exchange.loads.join(pool)
                self._looks_at = now + chance.random() * exchange.loads.interval_s
        count = len(self._replicas)
        self._due = [(now + chance.random() * self._interval_s, n) for n in range(count)]
        heapq.heapify(self._due)
        if now:  # a new agent looks at all engines before it takes traffic
            for number in range(count):
                self._scrape(number, now)

    def next_look(self) -> float:
        """Tell when the next scrape or report is due."""
        scrape_at = self._due[0][0]
        if self._exchange is None:
            return scrape_at
        return min(scrape_at, self._tells_at, self._tells_load_at)

    def look(self, now: float) -> None:
        """Scrape the engines that are due, and report."""
        if self._exchange is not None and self._tells_at <= now:
            self._tells_at += REPORT_INTERVAL_S
            self._exchange.report(self._pool, now)
        if self._exchange is not None and self._number is not None and self._tells_load_at <= now:
            self._tells_load_at = self._exchange.loads.tell(self._number, now)
        while self._due[0][0] <= now:
            due, number = self._due[0]
            heapq.heapreplace(self._due, (due + self._interval_s, number))
            self._scrape(number, now)

    def before_choice(self, now: float) -> None:
        """What it knows is what it counted and scraped."""

    def placed(self, flight: Flight, now: float) -> None:
        """Charge the request."""
        replica, asked = flight.replica, flight.asked
        if replica is not None and asked is not None:
            replica.begin(flight.charged_tokens, now)
            self._has_news(now)
            flight.placement = self._pool.note_placed(asked, replica, now=now)

    def answered(self, flight: Flight, now: float) -> None:
        """Learn from the time it took."""
        if flight.replica is not None and flight.placement is not None:
            flight.replica.prefill.note_first_token(flight.placement, now)
            self._has_news(now)

    def ended(self, flight: Flight) -> None:
        """Give back what was charged."""
        if flight.replica is not None:
            flight.replica.release(flight.charged_tokens)

    def _has_news(self, now: float) -> None:
        """Tell of a change when this agent looks for changes next."""
        if self._exchange is not None and self._number is not None:
            pause_s = self._exchange.loads.interval_s
            at = now + pause_s - (now - self._looks_at) % pause_s
            self._tells_load_at = min(self._tells_load_at, at)

    def _scrape(self, number: int, now: float) -> None:
        scheduler = self._engines.schedulers[number]
        scheduler.settle(now)
        figures = EngineFigures(
            running=scheduler.running,
            waiting=scheduler.waiting,
            kv_usage=scheduler.kv_usage,
            kv_capacity_tokens=scheduler.profile.kv_capacity_tokens,
            preemptions_total=scheduler.counters.preemptions,
        )
        self._replicas[number].note_scrape(figures, now)
