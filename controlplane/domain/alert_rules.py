"""The rules that alerts go by: one table, read by the loop, the console, docs and Prometheus' file.

`threshold` and `clear` are in the rule's unit; between them nothing changes, so that a value near
the limit does not flap. Where a rule goes by a pool's own promise, `threshold` is None here and
comes with each reading; the value clears at `CLEAR_SHARE` of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from controlplane.domain.slos import ORDER

CLEAR_SHARE: Final = 0.9  # of the limit: a tenth below it counts as over


class Severity(StrEnum):
    """How bad it is; the order is that of lists."""

    CRITICAL = "critical"  # users feel it, or soon will: wake somebody
    WARNING = "warning"  # needs a person today


class Scope(StrEnum):
    """What a rule looks at."""

    POOL = "pool"
    REPLICA = "replica"
    NODE = "node"
    LOOP = "loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: when it fires, when it clears, how bad that is and what to do."""

    name: str
    title: str
    scope: Scope = Scope.POOL
    severity: Severity
    unit: str  # s, ratio, requests, a minute, x, replicas
    threshold: float | None
    clear: float | None = None
    is_under: bool = False  # fires below its threshold
    for_s: float
    clear_for_s: float = 60.0
    remedy: str
    promise: str = ""  # of `slos.ORDER`, that it is about; empty: none, it costs money only
    asks: Literal["", "more", "fewer"] = ""  # replicas
    question: str = ""  # the diagnosis that answers it
    promql: str = ""  # by pool; empty: Prometheus has no figure for it
    own_line: bool = True  # False: the overview's attention list says it in its own words

    @property
    def comparison(self) -> str:
        """Give the word between value and limit."""
        return "below" if self.is_under else "over"


def _quantile(metric: str) -> str:
    return (
        f"histogram_quantile(0.99, sum by (pool, le) (rate(signalbox_{metric}_seconds_bucket[2m])))"
    )


def _share(codes: str, window: str = "2m") -> str:
    counted = '{pool!="",code!~"4([013-9].|2[0-8])"}'
    bad = f'sum by (pool) (rate(signalbox_requests_total{{pool!="",code=~"{codes}"}}[{window}]))'
    return f"{bad} / sum by (pool) (rate(signalbox_requests_total{counted}[{window}]))"


def _burns(long: str, short: str, rate: float) -> str:
    """Give Google's multi-window condition: SRE workbook, chapter "Alerting on SLOs", section 6."""
    allowed = f"({rate:g} * signalbox_slo_allowed_ratio)"
    parts = [f"({_share('5..|429', w)}) > on (pool) {allowed}" for w in (long, short)]
    return f"{parts[0]} and on (pool) {parts[1]}"


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="ttft-high",
        title="TTFT P99 over 2 s",
        severity=Severity.CRITICAL,
        unit="s",
        threshold=2.0,
        clear=1.8,
        for_s=60,
        promise="ttft",
        asks="more",
        remedy="Open the diagnosis: input lengths, then queue depth, then hit rate.",
        question="ttft",
        promql=f"{_quantile('ttft')} > 2",
    ),
    Rule(
        name="ttft-over-slo",
        title="TTFT P99 over its objective",
        severity=Severity.WARNING,
        unit="s",
        threshold=None,
        for_s=120,
        promise="ttft",
        asks="more",
        remedy="Open the diagnosis: input lengths, then queue depth, then hit rate.",
        question="ttft",
        promql=f"{_quantile('ttft')} > on (pool) signalbox_slo_ttft_p99_seconds",
    ),
    Rule(
        name="tpot-over-slo",
        title="TPOT P99 over its objective",
        severity=Severity.WARNING,
        unit="s",
        threshold=None,
        for_s=120,
        promise="tpot",
        asks="more",
        remedy="Fewer requests at once a replica, or more replicas: generation shares the card.",
        promql=f"{_quantile('tpot')} > on (pool) signalbox_slo_tpot_p99_seconds",
    ),
    Rule(
        name="throughput-down",
        title="Throughput down by over 30 % at equal demand",
        severity=Severity.WARNING,
        unit="ratio",
        threshold=0.7,
        clear=0.8,
        is_under=True,
        for_s=300,
        promise="tpot",
        remedy="Compare the replicas: one that lost speed takes longer for each request.",
        question="ttft",
    ),
    Rule(
        name="queue-long",
        title="Queue over 100 requests",
        severity=Severity.CRITICAL,
        unit="requests",
        threshold=100,
        clear=80,
        for_s=30,
        promise="ttft",
        asks="more",
        remedy="More replicas, or a stricter overload policy: the line costs everyone time.",
        question="ttft",
    ),
    Rule(
        name="gpu-low",
        title="GPU utilisation under 30 %",
        severity=Severity.WARNING,
        unit="ratio",
        threshold=0.3,
        clear=0.35,
        is_under=True,
        for_s=1800,
        clear_for_s=300,
        asks="fewer",
        remedy="Fewer replicas would do, unless the work is bound by decoding: see the diagnosis.",
        question="gpu-low",
    ),
    Rule(
        name="gpu-high",
        title="GPU utilisation over 95 %",
        severity=Severity.WARNING,
        unit="ratio",
        threshold=0.95,
        clear=0.9,
        for_s=600,
        clear_for_s=120,
        promise="tpot",
        asks="more",
        remedy="There is no room for a burst: add replicas before queues grow.",
    ),
    Rule(
        name="errors-high",
        title="Errors over 1 %",
        severity=Severity.CRITICAL,
        unit="ratio",
        threshold=0.01,
        clear=0.005,
        for_s=60,
        promise="availability",
        remedy="Requests shows each failure with its attempts; the replica's page its engine.",
        promql=f"{_share('5..')} > 0.01",
    ),
    Rule(
        name="kv-high",
        title="KV cache over 85 %",
        severity=Severity.WARNING,
        unit="ratio",
        threshold=0.85,
        clear=0.80,
        for_s=120,
        promise="ttft",
        asks="more",
        remedy="Requests soon wait for memory: more replicas, or fewer requests at once.",
        question="oom",
    ),
    Rule(
        name="preemptions",
        title="Engines preempt requests",
        severity=Severity.WARNING,
        unit="a minute",
        threshold=1.0,
        clear=0.0,
        for_s=120,
        clear_for_s=180,
        promise="tpot",
        asks="more",
        remedy="KV memory is short: fewer requests at once, shorter contexts, or more replicas.",
        question="oom",
    ),
    Rule(
        name="pool-down",
        title="No replica of the pool is ready",
        severity=Severity.CRITICAL,
        unit="replicas",
        threshold=1,
        clear=1,
        is_under=True,
        for_s=10,
        clear_for_s=30,
        promise="availability",
        asks="more",
        remedy="Its requests get 503. Each replica's page says why it is out.",
        own_line=False,
    ),
    Rule(
        name="replica-down",
        title="Replica is down",
        scope=Scope.REPLICA,
        severity=Severity.CRITICAL,
        unit="replicas",
        threshold=1,
        clear=1,
        is_under=True,
        for_s=10,
        clear_for_s=30,
        promise="availability",
        asks="more",
        remedy="Its page says why; it returns by itself once probes are good.",
        promql="max by (pool, replica) (signalbox_breaker_state) == 2",
        own_line=False,
    ),
    Rule(
        name="replica-failing",
        title="Replica fails what it is sent",
        scope=Scope.REPLICA,
        severity=Severity.WARNING,
        unit="replicas",
        threshold=1,
        clear=1,
        is_under=True,
        for_s=60,
        clear_for_s=60,
        promise="availability",
        asks="more",
        remedy=(
            "Look at its engine's log. Agents try it with one request now and then, and use it"
            " again once it answers."
        ),
    ),
    Rule(
        name="burn-fast",
        title="Error budget burns over 14.4 times too fast",
        severity=Severity.CRITICAL,
        unit="x",
        threshold=14.4,  # 2 % of a 30-day budget in one hour, seen over 1 h and 5 min
        clear=14.4,
        for_s=0,
        promise="availability",
        remedy="At this rate the month's budget is gone within two days. Stop what changed last.",
        promql=_burns("1h", "5m", 14.4),
    ),
    Rule(
        name="burn-slow",
        title="Error budget burns over 6 times too fast",
        severity=Severity.WARNING,
        unit="x",
        threshold=6.0,  # 5 % of the budget in six hours, seen over 6 h and 30 min
        clear=6.0,
        for_s=0,
        promise="availability",
        remedy="At this rate the month's budget is gone within five days. Find what fails.",
        promql=_burns("6h", "30m", 6),
    ),
    Rule(
        name="budget-half",
        title="Over half the error budget is spent",
        severity=Severity.WARNING,
        unit="ratio",
        threshold=0.5,
        clear=0.5,
        for_s=0,
        promise="availability",
        remedy="SLOs shows what is left, and since when it goes.",
        promql="signalbox_error_budget_spent_ratio > 0.5",
    ),
    Rule(
        name="budget-exhausted",
        title="The error budget is exhausted",
        severity=Severity.CRITICAL,
        unit="ratio",
        threshold=1.0,
        clear=1.0,
        for_s=0,
        promise="availability",
        remedy="New rollout steps are refused until the month ends, or with a reason.",
        promql="signalbox_error_budget_spent_ratio > 1",
    ),
    Rule(
        name="agent-silent",
        title="Agent is silent",
        scope=Scope.NODE,
        severity=Severity.CRITICAL,
        unit="s",
        threshold=10.0,  # five missed reports: settings.AGENT_SILENT_AFTER_S
        clear=10.0,
        for_s=0,
        clear_for_s=20,
        remedy="Look at its process and at the network between it and here.",
        own_line=False,
    ),
    Rule(
        name="agent-behind",
        title="Agent runs an older table",
        scope=Scope.NODE,
        severity=Severity.WARNING,
        unit="s",
        threshold=15.0,
        clear=5.0,
        for_s=0,
        clear_for_s=10,
        remedy="It pulls by itself; Routing shows what its deliveries say.",
        own_line=False,
    ),
    Rule(
        name="loop-late",
        title="Control loop is late",
        scope=Scope.LOOP,
        severity=Severity.WARNING,
        unit="x",
        threshold=3.0,  # intervals without a run
        clear=2.0,
        for_s=0,
        clear_for_s=10,
        remedy="Look at beat and worker: both must run for loops to run.",
        own_line=False,
    ),
)
BY_NAME: Final[Mapping[str, Rule]] = {rule.name: rule for rule in RULES}
# The milder rule of two about the same thing tells nothing new while the graver one fires.
GRAVER: Final[Mapping[str, str]] = {
    "ttft-over-slo": "ttft-high",
    "burn-slow": "burn-fast",
    "budget-half": "budget-exhausted",
}


def outranked(rule: Rule, firing: Iterable[Rule]) -> Rule | None:
    """Give the firing rule of the same pool that forbids what this one asks for; None: none does.

    One order for all who act, scaling included (which goes down only when no signal asks for more):
    availability, then TTFT, then the speed of generation, then cost. So no two alerts of a pool ask
    for opposite things at once.
    """
    if not rule.asks:
        return None
    against = [r for r in firing if r.asks and r.asks != rule.asks and _rank(r) < _rank(rule)]
    return min(against, key=lambda r: (_rank(r), r.name), default=None)


def _rank(rule: Rule) -> int:
    return ORDER.index(rule.promise) if rule.promise else len(ORDER)
