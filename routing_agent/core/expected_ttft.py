"""Where the first token is expected soonest, counting what each choice saves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

import xxhash

from routing_agent.core.chance import Chance
from routing_agent.core.policy import Candidates, Pick, RouteRequest
from routing_agent.core.replica import Replica
from routing_agent.wire import PoolSettings

# Pools up to this size are looked at whole; of larger ones those who hold most of the prompt, the
# session's replica, its place on the ring, the least loaded seen last time and a few by chance.
WHOLE_UP_TO: Final = 24
MOST_LEVELS: Final = 6
MOST_HOLDERS: Final = 4
REMEMBERED: Final = 3
BY_CHANCE: Final = 4
RING_PLACES: Final = 1

# Between the soft and the hard KV watermark a prompt is expected to wait up to so long for others
# to end; above it, it goes elsewhere if anybody else can take it.
KV_WAIT_S: Final = 1.0
KV_FULL_S: Final = 60.0
# A request under way is held against a replica like so many prompt tokens to compute: it takes its
# part of every step and of the KV cache. So 30 requests more outweigh half a second of prefill.
HELD_TOKENS: Final = 64.0
# Usage is an estimate: nobody is taken to be closer to falling back than this.
MOST_USAGE: Final = 0.75
# An adapter that is loaded but has no request under way may have to be copied to the GPU first:
# 160 MB (rank 32) at 8 GB/s takes 20 ms, from disk 160 ms.
ADAPTER_SWAP_S: Final = 0.05

# Who holds how much of a prompt: leading blocks, and a bit mask of replicas; the most first.
Levels = list[tuple[int, int]]


class Cost:
    """What one replica would cost a request, in seconds, and of what that is made."""

    __slots__ = ("ahead", "held", "hit_dial", "load_s", "matching", "rate", "replica", "seconds",
                 "uncached", "usage", "wait_s", "weight")  # fmt: skip

    def __init__(
        self, request: RouteRequest, replica: Replica, matching: int, others: float, now: float
    ) -> None:
        settings = replica.settings
        prefill = replica.prefill
        self.replica = replica
        self.matching = matching
        self.ahead = others + (prefill.backlog_tokens(now) if prefill.queued_tokens else 0.0)
        self.held = HELD_TOKENS * (replica.inflight_requests + replica.others_inflight)
        self.uncached = request.uncached_tokens(matching)
        self.rate = prefill.tokens_per_s
        ramps = replica.ramp_from is not None
        self.weight = replica.weight(now) if ramps else replica.endpoint.weight
        self.wait_s = self.load_s = 0.0
        if replica.figures.kv_usage is not None:
            usage = replica.kv_usage_now(now)
            if usage > settings.kv_soft_usage:
                self.wait_s = kv_wait_s(usage, settings)
        if request.adapter:
            self.load_s = replica.adapters.load_wait_s(request.adapter, now) or 0.0
            self.wait_s += self.load_s
            if not _computes(replica, request.adapter):
                self.wait_s += ADAPTER_SWAP_S
        self.usage = prefill.usage(now)
        self.hit_dial = self.seconds = 0.0  # until it is weighed

    def weigh(self, pool_usage: float) -> None:
        """Work out the cost in a pool that is so busy by and large."""
        settings = self.replica.settings
        self.replica.prefill.pool_usage = pool_usage
        self.hit_dial = hit_dial((self.usage + pool_usage) / 2, settings.hit_dial)
        work = settings.load_dial * (self.ahead + self.held) + self.hit_dial * self.uncached
        self.seconds = (work / self.rate + self.wait_s) / self.weight + self.replica.detour_s


def _computes(replica: Replica, adapter: str) -> bool:
    return adapter in replica.adapters.running or adapter in (
        replica.figures.running_adapters or ()
    )


def hit_dial(usage: float, asked: float) -> float:
    """Give what a prompt token to compute counts for on a replica that is so busy.

    It delays this prompt, and those that come before the queue is empty again: in a queue of
    usage u they are u / (1 - u) for each (Kleinrock, M/G/1). How busy it is is taken half from the
    replica itself and half from its pool: alone it would be chance, to several agents each another.
    So it is 1 on an idle replica, `asked`
    on one that is half busy, and more on one that can hardly take any. An `asked` below 1, with
    which loads decide rather than caches, is what it is.
    """
    if asked <= 1.0:
        return asked
    known = usage if usage < MOST_USAGE else MOST_USAGE
    return 1.0 + (asked - 1.0) * known / (1.0 - known)


def kv_wait_s(usage: float, settings: PoolSettings) -> float:
    """Give how long a prompt is expected to wait for KV space at a usage above the soft mark."""
    if usage >= settings.kv_hard_usage:
        return KV_FULL_S
    span = settings.kv_hard_usage - settings.kv_soft_usage
    return KV_WAIT_S * (usage - settings.kv_soft_usage) / span


class ExpectedTtft:
    """The replica with the least expected time to the first token.

    Its cost in seconds: `(load_dial x (prompt tokens ahead + what requests under way hold) +
    hit_dial x uncached prompt tokens) / prefill rate`, and what it may have to wait for KV space
    and for its adapter, over the replica's weight, which grows during its slow start. With a hit
    dial above 1 saved work counts for more than it saves this request: it shortens the queue for
    those that come after. Of those there are few on a replica that idles: see `hit_dial`.
    """

    def pick(
        self,
        request: RouteRequest,
        usable: Sequence[Replica],
        pool: Candidates,
        *,
        now: float,
        chance: Chance,
    ) -> Pick:
        """Pick the cheapest; a session stays unless it gains, near-ties go by rendezvous."""
        settings = pool.settings
        costs = costs_of(request, usable, pool, now)
        best = costs[0]
        for cost in costs:
            if cost.seconds < best.seconds:
                best = cost
        if len(pool.replicas) > WHOLE_UP_TO:
            costs.sort(key=_ahead_s)
            pool.spares = [cost.replica for cost in costs[:REMEMBERED]]
        had = pool.sessions.home(request.session, now - settings.session_lifetime_s)
        home = next((cost for cost in costs if cost.replica.id == had), None) if had else None
        if home is not None and home.seconds <= best.seconds + settings.session_margin_s:
            return Pick(home.replica, "affinity", "the session's replica")
        best = near_tie(costs, best, request, settings, now)
        return _told(best, home is not None, bool(request.blocks))

    def terms(self, request: RouteRequest, replica: Replica, *, now: float) -> dict[str, float]:
        """What the expected time is made of."""
        matching = replica.profile.matching(request.blocks)
        others = replica.tokens_of_others(now)
        told = replica.hearsay.told_tokens
        cost = Cost(request, replica, matching, told if others is None else others, now)
        cost.weigh(replica.prefill.pool_usage)
        seldom = {
            "adapter_load_s": cost.load_s,
            "other_zone_s": replica.detour_s,
            "told_by_agents_tokens": told,  # a part of those ahead
        }
        return {name: seconds for name, seconds in seldom.items() if seconds} | {
            "ahead_tokens": cost.ahead,
            "held_tokens": cost.held,
            "uncached_tokens": cost.uncached,
            "hit_dial": cost.hit_dial,
            "prefill_tokens_per_s": cost.rate,
            "wait_s": cost.wait_s,
            "weight": cost.weight,
            "score": cost.seconds,
        }


def costs_of(
    request: RouteRequest, replicas: Sequence[Replica], pool: Candidates, now: float
) -> list[Cost]:
    """Give what each replica would cost.

    What is not known of one's load is that of the others, if agents do not tell of more.
    """
    levels, hinted = holders(request, pool)
    costs, unknown, known_sum = [], [], 0.0
    for replica in replicas:
        others = replica.tokens_of_others(now) if replica.scraped_at is not None else None
        if others is None:
            unknown.append(replica)
        else:
            known_sum += others
            costs.append(Cost(request, replica, _matching(levels, hinted, replica), others, now))
    mean = known_sum / len(costs) if costs else 0.0
    for replica in unknown:
        others = mean
        if replica.hearsay.told_requests:
            replica.hearsay.expire_loads(now)
            others = max(mean, replica.hearsay.told_tokens)
        costs.append(Cost(request, replica, _matching(levels, hinted, replica), others, now))
    usage = 0.0
    for cost in costs:
        usage += cost.usage
    usage /= len(costs)
    for cost in costs:
        cost.weigh(usage)
    return costs


def near_tie(
    costs: Sequence[Cost], best: Cost, request: RouteRequest, settings: PoolSettings, now: float
) -> Cost:
    """Give, of those that cost nearly the least, the one that every agent would name.

    Only those are looked at that were given no more work lately than their mean: so work is even
    where it can be had for nothing, and a popular prefix comes to as many replicas as it needs.
    """
    slack = max(settings.near_tie_s, settings.near_tie_ratio * best.ahead / best.rate)
    if best.hit_dial < settings.hit_dial:  # where work counts for less, so do differences
        slack *= best.hit_dial / settings.hit_dial
    limit = best.seconds + slack
    near = [cost for cost in costs if cost.seconds <= limit]
    if len(near) == 1:
        return best
    if not request.blocks:
        least = min(_load(cost) for cost in near)
        near = [cost for cost in near if _load(cost) <= least]
    works = [cost.replica.prefill.recent_work(now) / cost.weight for cost in near]
    mean = sum(works) / len(works)
    named, most = best, -1
    for cost, work in zip(near, works, strict=True):
        if work <= mean:
            score = xxhash.xxh3_64_intdigest(cost.replica.id.encode(), request.session)
            if score > most:
                named, most = cost, score
    return named


def shortlist(
    request: RouteRequest, pool: Candidates, *, now: float, chance: Chance
) -> list[Replica]:
    """Give the replicas of a large pool that are worth a look: no more, however large it is."""
    found = _holding(request, pool, chance)
    had = pool.by_id(pool.sessions.home(request.session, now - pool.settings.session_lifetime_s))
    if had is not None:
        found[had.id] = had
    homes = map(pool.by_id, islice(pool.ring().walk(request.session), RING_PLACES))
    found |= {home.id: home for home in homes if home is not None}
    for spare in pool.spares:
        found[spare.id] = spare
    replicas = pool.replicas
    for _ in range(BY_CHANCE):
        one = replicas[chance.randrange(len(replicas))]
        found[one.id] = one
    return list(found.values())


def _holding(request: RouteRequest, pool: Candidates, chance: Chance) -> dict[str, Replica]:
    """Give some of those that hold most of a prompt; of many, those from a random one on."""
    found: dict[str, Replica] = {}
    for levels in holders(request, pool):
        room = MOST_HOLDERS
        for _, mask in levels:
            start = chance.randrange(mask.bit_length()) if mask.bit_count() > room else 0
            for part, offset in ((mask >> start, start), (mask & ((1 << start) - 1), 0)):
                while part and room:
                    lowest = part & -part
                    part ^= lowest
                    one = pool.numbered.get(offset + lowest.bit_length() - 1)
                    if one is not None and one.id not in found:
                        found[one.id] = one
                        room -= 1
            if not room:
                break
    return found


def holders(request: RouteRequest, pool: Candidates) -> tuple[Levels, Levels]:
    """Give who holds how much of a prompt: as placed by us, and as others told."""
    if not request.blocks:
        return [], []
    return pool.index.levels(request.blocks, MOST_LEVELS), pool.index.hinted(request.blocks)


def _matching(levels: Levels, hinted: Levels, replica: Replica) -> int:
    bit = replica.profile.bit
    most = 0
    for count, mask in levels:
        if mask & bit:
            most = count
            break
    for count, mask in hinted:
        if count <= most:
            break
        if mask & bit:
            return count
    return most


def _load(cost: Cost) -> float:
    return cost.replica.inflight_tokens / cost.weight


def _ahead_s(cost: Cost) -> float:
    return cost.ahead / cost.rate / cost.weight


def _told(cost: Cost, moves: bool, has_blocks: bool) -> Pick:
    if moves:
        reason = "the session moves: its replica would take longer by more than the margin"
        return Pick(cost.replica, "prefix" if cost.matching else "load", reason)
    if cost.matching:
        return Pick(cost.replica, "prefix", "least expected time to the first token")
    if not has_blocks:
        return Pick(cost.replica, "load", "the least work ahead; nothing is known of prefixes")
    return Pick(cost.replica, "hash", "no prefix of it is known: the hash among the least loaded")
