"""Guided diagnosis: fixed questions, each answered by figures now and before. Pure.

The order of a diagnosis is fixed, so that two people who look at the same pool say the same thing:
TTFT is up: input lengths, then queue depth, then hit rate, then what stands behind a queue.
The first answer of yes is the cause, unless a later one explains it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from controlplane.domain import latency, rollups
from controlplane.domain.rollups import Figures

LONGER: Final = 1.5  # times as long: the mean of mixed prompts moves by tens of percent by itself
LONGER_TOKENS: Final = 200.0  # a few tokens more are computed in no time
MORE_REQUESTS: Final = 1.3
QUEUE_GREW: Final = 2.0
QUEUE_WAIT_S: Final = 0.1  # of P95: less is not what makes a TTFT stand out
QUEUE_DEPTH: Final = 1.0
HIT_RATE_FELL: Final = 0.1  # by as many points, and by a fifth of what it was
HIT_RATE_SHARE: Final = 0.8
PROMPT_TOKENS_LEAST: Final = 1000  # for a hit rate
ANSWERS_LEAST: Final = 10
SLOW_REPLICA: Final = 2.0  # times as long for a request as the median of the others
SLOWER_GENERATION: Final = 1.5
FEW_RUNNING: Final = 1.0  # requests at once a replica: below, cards wait for work

Verdict = Literal["yes", "no", "no data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a diagnosis looks at; None where nothing is known."""

    now: Figures | None
    before: Figures | None
    replicas: Mapping[str, Figures] = field(default_factory=dict)  # now, by public id
    ready: int = 0
    live: int = 0  # replicas that serve, or should
    tpot_promised_s: float = 0.0
    utilization: float | None = None
    kv_usage_max: float | None = None
    kv_capacity_tokens: int | None = None  # of one replica
    max_running: int | None = None  # requests that one replica computes at once
    context_tokens: int | None = None
    kv_dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One question: what was looked at, now and before, and the answer."""

    name: str
    title: str
    now: str = "—"
    before: str = "—"
    verdict: Verdict
    reason: str
    cause: str = ""  # of a yes: the sentence that names the cause
    remedy: str = ""
    explained_by: str = ""  # a later step that is the cause of this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The answers in their order, and the first cause in a sentence."""

    question: str
    title: str
    steps: tuple[Step, ...]
    cause: str
    remedy: str
    cause_step: str  # its name; empty: none found


TITLES: Final = {
    "ttft": "TTFT is up",
    "gpu-low": "GPU use is low",
    "oom": "Memory is short",
}


def diagnose(question: str, seen: Evidence) -> Diagnosis:
    """Answer one of the questions of `TITLES`."""
    steps = {"ttft": _ttft, "gpu-low": _gpu_low, "oom": _oom}[question](seen)
    found = _cause(steps)
    missing = [s.title.lower() for s in steps if s.verdict == "no data"]
    if found is None:
        cause = "None of these is the cause."
        if missing:
            cause = f"No cause found; there is no data on {', '.join(missing)}."
        return Diagnosis(
            question=question,
            title=TITLES[question],
            steps=steps,
            cause=cause,
            remedy="Look at the pool's charts and at what changed.",
            cause_step="",
        )
    return Diagnosis(
        question=question,
        title=TITLES[question],
        steps=steps,
        cause=found.cause,
        remedy=found.remedy,
        cause_step=found.name,
    )


def _cause(steps: tuple[Step, ...]) -> Step | None:
    by_name = {s.name: s for s in steps}
    first = next((s for s in steps if s.verdict == "yes"), None)
    while first is not None and first.explained_by:
        first = by_name[first.explained_by]
    return first


# -- TTFT is up ------------------------------------------------------------------------------------


def _ttft(seen: Evidence) -> tuple[Step, ...]:
    behind = (_lost(seen), _slow_replica(seen), _demand(seen))
    hit_rate, speed = _hit_rate(seen), _speed(seen)
    queue = _queue(seen, (*behind, hit_rate, speed))
    return (_inputs(seen), queue, hit_rate, *behind, speed)


def _inputs(seen: Evidence) -> Step:
    now, before = _mean_input(seen.now), _mean_input(seen.before)
    title = "Input lengths"
    if now is None or before is None:
        return _unknown("inputs", title, now, before, "tokens", "too few answers with a prompt")
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
        return _unknown("queue", title, now, before, "waiting", "nobody tells who waits")
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
        return _unknown("hit-rate", title, now, before, "", "too few prompt tokens for a hit rate")
    fell = before - now >= HIT_RATE_FELL and now <= HIT_RATE_SHARE * before
    return Step(
        name="hit-rate",
        title=title,
        now=f"{now:.0%}",
        before=f"{before:.0%}",
        verdict="yes" if fell else "no",
        reason="The share of prompt tokens that engines had in their caches.",
        cause=f"The caches are colder: {now:.0%} of prompt tokens hit, {before:.0%} before, so"
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
        return _unknown("demand", title, now, before, "requests/s", "nothing was reported")
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
        return _unknown("speed", title, now, before, "s", "too few streams to tell a TPOT")
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


# -- GPU use is low --------------------------------------------------------------------------------


def _gpu_low(seen: Evidence) -> tuple[Step, ...]:
    return _few_requests(seen), _decode_bound(seen)


def _few_requests(seen: Evidence) -> Step:
    running = rollups.running(seen.now) if seen.now else None
    was = rollups.running(seen.before) if seen.before else None
    title = "Too few requests"
    if running is None or not seen.ready:
        return _unknown("few-requests", title, running, was, "running", "no engine tells its load")
    each = running / seen.ready
    return Step(
        name="few-requests",
        title=title,
        now=f"{running:.1f} running on {seen.ready} replicas",
        before="—" if was is None else f"{was:.1f} running",
        verdict="yes" if each < FEW_RUNNING else "no",
        reason=f"{each:.1f} requests at once a replica; below {FEW_RUNNING:g} cards wait for work.",
        cause=f"Too few requests: {each:.1f} at once on each of {seen.ready} replicas.",
        remedy="Fewer replicas carry this load; the planner says how many.",
    )


def _decode_bound(seen: Evidence) -> Step:
    title = "Bound by decoding"
    tpot = latency.percentile(seen.now.tpot, 0.99) if seen.now else None
    if seen.now is None or tpot is None:
        return _unknown("decode-bound", title, tpot, None, "s", "no stream tells a TPOT")
    fresh = seen.now.prompt_tokens - seen.now.cached_tokens
    is_bound = seen.now.output_tokens > fresh and tpot <= seen.tpot_promised_s
    return Step(
        name="decode-bound",
        title=title,
        now=f"TPOT P99 {tpot * 1000:.1f} ms",
        before=f"objective {seen.tpot_promised_s * 1000:.1f} ms",
        verdict="yes" if is_bound else "no",
        reason=f"{seen.now.output_tokens:,} tokens generated, {fresh:,} read: decoding waits for"
        " memory, which utilisation does not show.",
        cause="The work is bound by decoding: utilisation is low and TPOT within its objective."
        " That is no fault.",
        remedy="Look at TPOT instead; more requests at once would use the cards better.",
    )


# -- memory is short -------------------------------------------------------------------------------


def _oom(seen: Evidence) -> tuple[Step, ...]:
    return _concurrency(seen), _lengths(seen), _kv_dtype(seen)


def _concurrency(seen: Evidence) -> Step:
    running = rollups.running(seen.now) if seen.now else None
    was = rollups.running(seen.before) if seen.before else None
    title = "Requests at once"
    if running is None or was is None:
        return _unknown("concurrency", title, running, was, "running", "no engine tells its load")
    is_more = running >= MORE_REQUESTS * was and running >= FEW_RUNNING
    limit = "no limit is told" if seen.max_running is None else f"limit {seen.max_running} each"
    return Step(
        name="concurrency",
        title=title,
        now=f"{running:.1f} running ({limit})",
        before=f"{was:.1f} running",
        verdict="yes" if is_more else "no",
        reason="Each request at once holds KV memory for all its tokens.",
        cause=f"More requests run at once: {running:.1f}, {was:.1f} before.",
        remedy="Lower the pool's concurrency a replica, or add replicas.",
    )


def _lengths(seen: Evidence) -> Step:
    running = rollups.running(seen.now) if seen.now else None
    title = "Length of contexts"
    if running is None or seen.kv_capacity_tokens is None or not seen.ready:
        return _unknown("lengths", title, None, None, "", "no engine tells its KV capacity")
    room = seen.kv_capacity_tokens * seen.ready / max(running, 1.0)
    longest = seen.context_tokens
    is_short = longest is not None and longest > room
    told = "not declared" if longest is None else f"{longest:,} tokens"
    return Step(
        name="lengths",
        title=title,
        now=f"room for {room:,.0f} tokens each",
        before=f"longest context {told}",
        verdict="yes" if is_short else "no" if longest is not None else "no data",
        reason="KV memory of the replicas over the requests that run now.",
        cause=f"Contexts may be longer ({told}) than the memory each running request has"
        f" ({room:,.0f} tokens).",
        remedy="Lower the engine's maximum length, or send long requests to a pool of their own.",
    )


def _kv_dtype(seen: Evidence) -> Step:
    is_wide = seen.kv_dtype in {"bf16", "fp16", "fp32"}
    usage = "—" if seen.kv_usage_max is None else f"{seen.kv_usage_max:.0%}"
    return Step(
        name="kv-dtype",
        title="KV quantisation",
        now=f"{seen.kv_dtype or 'not declared'}, fullest replica {usage}",
        verdict="yes" if is_wide else "no" if seen.kv_dtype else "no data",
        reason="8 bits a value instead of 16 hold twice the tokens.",
        cause=f"KV values are kept as {seen.kv_dtype}; quantised they would take half.",
        remedy="Start the engines with an FP8 KV cache, once quality was checked.",
    )


def _unknown(
    name: str, title: str, now: float | None, before: float | None, unit: str, why: str
) -> Step:
    missing = "now" if now is None else "before"
    return Step(
        name=name,
        title=title,
        now=_plain(now, unit),
        before=_plain(before, unit),
        verdict="no data",
        reason=f"Not known {missing}: {why}.",
    )


def _plain(value: float | None, unit: str) -> str:
    return "—" if value is None else f"{value:.3g} {unit}".strip()
