"""Why a pool's TTFT is up: input lengths, queue depth, hit rate, and what stands behind a queue."""

from __future__ import annotations

import statistics
from typing import Final

from controlplane.domain import latency, rollups
from controlplane.domain.diagnosis_steps import MORE_REQUESTS, Evidence, Step, unknown
from controlplane.domain.rollups import Figures

LONGER: Final = 1.5  # times as long: the mean of mixed prompts moves by tens of percent by itself
LONGER_TOKENS: Final = 200.0  # a few tokens more are computed in no time
QUEUE_GREW: Final = 2.0
QUEUE_WAIT_S: Final = 0.1  # of P95: less is not what makes a TTFT stand out
QUEUE_DEPTH: Final = 1.0
HIT_RATE_FELL: Final = 0.1  # by as many points, and by a fifth of what it was
HIT_RATE_SHARE: Final = 0.8
PROMPT_TOKENS_LEAST: Final = 1000  # for a hit rate
ANSWERS_LEAST: Final = 10
SLOW_REPLICA: Final = 2.0  # times as long for a request as the median of the others
SLOWER_GENERATION: Final = 1.5


def ttft_steps(seen: Evidence) -> tuple[Step, ...]:
    """Answer the questions of a high TTFT, in their fixed order."""
    behind = (_lost(seen), _slow_replica(seen), _demand(seen))
    hit_rate, speed = _hit_rate(seen), _speed(seen)
    queue = _queue(seen, (*behind, hit_rate, speed))
    return (_inputs(seen), queue, hit_rate, *behind, speed)


def _inputs(seen: Evidence) -> Step:
    now, before = _mean_input(seen.now), _mean_input(seen.before)
    title = "Input lengths"
    if now is None or before is None:
        return unknown("inputs", title, now, before, "tokens", "too few answers with a prompt")
    is_longer = now >= LONGER * before and now - before >= LONGER_TOKENS
    return Step(
        name="inputs",
        title=title,
        now=f"{now:,.0f} tokens",
        before=f"{before:,.0f} tokens",
        verdict="yes" if is_longer else "no",
        reason=f"Mean prompt of answered requests: {now / before:.1f} times what it was."
        if before
        else "There were no prompt tokens before.",
        cause=f"Inputs are longer: {now:,.0f} tokens in the mean, {before:,.0f} before.",
        remedy="Send long prompts to a pool of their own, or add replicas: prefill takes longer.",
    )


def _mean_input(figures: Figures | None) -> float | None:
    answered = _answered(figures)
    if figures is None or answered < ANSWERS_LEAST:
        return None
    return figures.prompt_tokens / answered


def _answered(figures: Figures | None) -> int:
    if figures is None:
        return 0
    return sum(n for status, n in figures.statuses.items() if status.startswith("2"))


def _queue(seen: Evidence, later: tuple[Step, ...]) -> Step:
    now, before = _depth(seen.now), _depth(seen.before)
    wait, was = _wait_s(seen.now), _wait_s(seen.before)
    title = "Queue depth"
    if now is None or (before is None and was is None):
        return unknown("queue", title, now, before, "waiting", "nobody tells who waits")
    is_long = _grew(now, before, QUEUE_DEPTH) or _grew(wait, was, QUEUE_WAIT_S)
    behind = next((s for s in later if s.verdict == "yes"), None) if is_long else None
    return Step(
        name="queue",
        title=title,
        now=_queue_text(now, wait),
        before=_queue_text(before, was),
        verdict="yes" if is_long else "no",
        reason="Requests that wait, in agents and engines together, and the P95 of the wait."
        + (f" Behind it: {behind.title.lower()}." if behind else ""),
        cause=f"Requests queue ({_queue_text(now, wait)}) without more of them coming in,"
        " fewer replicas, a slow one, or a colder cache.",
        remedy="Look at what changed; more replicas shorten the line meanwhile.",
        explained_by=behind.name if behind else "",
    )


def _grew(now: float | None, before: float | None, least: float) -> bool:
    return now is not None and now >= least and now >= QUEUE_GREW * (before or 0.0)


def _depth(figures: Figures | None) -> float | None:
    """Give who waits in the mean: in engines as they tell, in agents by Little's law."""
    if figures is None or not figures.covered_s:
        return None
    waited_s = sum(n * latency.bucket_middle_s(b) for b, n in figures.queue_wait.items() if n > 0)
    return (rollups.waiting(figures) or 0.0) + waited_s / figures.covered_s


def _wait_s(figures: Figures | None) -> float | None:
    return None if figures is None else latency.percentile(figures.queue_wait, 0.95)


def _queue_text(depth: float | None, wait_s: float | None) -> str:
    if depth is None:
        return "—"
    wait = "" if wait_s is None else f", P95 {wait_s:.2f} s"
    return f"{depth:.1f} waiting{wait}"


def _hit_rate(seen: Evidence) -> Step:
    now, before = _rate(seen.now), _rate(seen.before)
    title = "Prefix hit rate"
    if now is None or before is None:
        return unknown("hit-rate", title, now, before, "%", "too few prompt tokens for a hit rate")
    fell = before - now >= HIT_RATE_FELL and now <= HIT_RATE_SHARE * before
    return Step(
        name="hit-rate",
        title=title,
        now=f"{now * 100:.0f} %",
        before=f"{before * 100:.0f} %",
        verdict="yes" if fell else "no",
        reason="The share of prompt tokens that engines had in their caches.",
        cause=f"The caches are colder: {now * 100:.0f} % of prompt tokens hit,"
        f" {before * 100:.0f} % before, so"
        " more has to be computed before each first token.",
        remedy="Look for replicas that restarted, a new system prompt, or clients that lost their"
        " session id.",
    )


def _rate(figures: Figures | None) -> float | None:
    if figures is None or figures.prompt_tokens < PROMPT_TOKENS_LEAST:
        return None
    return rollups.hit_rate(figures)


def _lost(seen: Evidence) -> Step:
    is_lost = seen.ready < seen.live
    return Step(
        name="lost-replicas",
        title="Replicas out",
        now=f"{seen.ready} of {seen.live} ready",
        verdict="yes" if is_lost else "no" if seen.live else "no data",
        reason="Replicas that are ejected, failed or still starting carry nothing.",
        cause=f"{seen.live - seen.ready} of {seen.live} replicas are out; the others carry their"
        " load.",
        remedy="The replicas' pages say why they are out; add replicas if they stay out.",
    )


def _slow_replica(seen: Evidence) -> Step:
    title = "One slow replica"
    held = {name: s for name, f in seen.replicas.items() if (s := _held_s(f)) is not None}
    if len(held) < 2:
        return Step(
            name="slow-replica",
            title=title,
            verdict="no data",
            reason="Fewer than two replicas tell what they compute, so none can be compared.",
        )
    slowest = max(held, key=lambda name: (held[name], name))
    others = statistics.median(s for name, s in held.items() if name != slowest)
    is_slow = held[slowest] >= SLOW_REPLICA * others
    return Step(
        name="slow-replica",
        title=title,
        now=f"{slowest}: {held[slowest]:.2f} s a request",
        before=f"the others: {others:.2f} s",
        verdict="yes" if is_slow else "no",
        reason="Seconds in the engine for each request that ended, beside the other replicas now.",
        cause=f"Replica {slowest} is slow: {held[slowest]:.2f} s for a request, {others:.2f} s on"
        " the others.",
        remedy=f"Drain {slowest} and look at its card and its engine's log.",
    )


def _held_s(figures: Figures) -> float | None:
    """Give how long a request is in an engine, by Little's law: what runs over what ends."""
    if not figures.load_s:
        return None
    if figures.requests < ANSWERS_LEAST:
        # Much under way and next to nothing done: that long at least.
        return float(figures.running_s) if figures.running_s >= figures.load_s else None
    return figures.running_s / figures.requests


def _demand(seen: Evidence) -> Step:
    now, before = _per_s(seen.now), _per_s(seen.before)
    title = "More requests"
    if now is None or before is None:
        return unknown("demand", title, now, before, "requests/s", "nothing was reported")
    is_more = before > 0 and now >= MORE_REQUESTS * before
    return Step(
        name="demand",
        title=title,
        now=f"{now:.2f} requests/s",
        before=f"{before:.2f} requests/s",
        verdict="yes" if is_more else "no",
        reason="Requests that ended, whatever their answer.",
        cause=f"More requests come in: {now:.2f} a second, {before:.2f} before.",
        remedy="Add replicas, or let the overload policy turn some away.",
    )


def _per_s(figures: Figures | None) -> float | None:
    return None if figures is None else rollups.rate(figures.requests, figures)


def _speed(seen: Evidence) -> Step:
    now = latency.percentile(seen.now.tpot, 0.5) if seen.now else None
    before = latency.percentile(seen.before.tpot, 0.5) if seen.before else None
    title = "Slower generation"
    if now is None or before is None:
        return unknown("speed", title, now, before, "s", "too few streams to tell a TPOT")
    is_slower = now >= SLOWER_GENERATION * before
    return Step(
        name="speed",
        title=title,
        now=f"TPOT P50 {now * 1000:.1f} ms",
        before=f"TPOT P50 {before * 1000:.1f} ms",
        verdict="yes" if is_slower else "no",
        reason="All engines of the pool together.",
        cause=f"The engines generate slower: a token takes {now * 1000:.1f} ms, it took"
        f" {before * 1000:.1f} ms, so running requests hold their places longer.",
        remedy="Look at clocks and temperatures of the cards, and at what else runs on them.",
    )
