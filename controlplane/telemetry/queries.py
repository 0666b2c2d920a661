"""Every PromQL query by name, with its unit and the labels it must come back with.

All read the agents' own `signalbox_*` series (docs/architecture.md), which are the same for every
engine. `{pool}` and `{range}` are filled in; a pool's slug cannot contain a quote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query: its text, the unit of its values, and the label that names each series."""

    promql: str
    unit: str
    label: str | None = None  # None: a single series

    def text(self, **values: str) -> str:
        """Fill in the blanks, quoting label values for PromQL."""
        quoted = {k: v.replace("\\", "\\\\").replace('"', '\\"') for k, v in values.items()}
        filled = self.promql
        for name, value in quoted.items():
            filled = filled.replace("{" + name + "}", value)
        return filled


def _quantile(metric: str, quantile: float) -> Query:
    rate = f'rate(signalbox_{metric}_seconds_bucket{{pool="{{pool}}"}}[{{range}}])'
    return Query(promql=f"histogram_quantile({quantile}, sum by (le) ({rate}))", unit="s")


LATENCIES: Mapping[str, Mapping[str, Query]] = {
    metric: {name: _quantile(metric, q) for name, q in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
    for metric in ("ttft", "tpot", "e2e", "queue_wait")
}
REQUESTS = Query(
    promql='sum by (code) (rate(signalbox_requests_total{pool="{pool}"}[{range}]))',
    unit="requests/s",
    label="code",
)


def _rate(metric: str) -> str:
    return f'sum (rate(signalbox_{metric}{{pool="{{pool}}"}}[{{range}}]))'


TOKENS: Mapping[str, Query] = {
    "prompt": Query(promql=_rate("prompt_tokens_total"), unit="tokens/s"),
    "cached": Query(promql=_rate("cached_prompt_tokens_total"), unit="tokens/s"),
    "output": Query(promql=_rate("output_tokens_total"), unit="tokens/s"),
}
HIT_RATE = Query(  # without prompts 0/0 is NaN: a gap
    promql=f"{_rate('cached_prompt_tokens_total')} / {_rate('prompt_tokens_total')}", unit="ratio"
)
CLOCK = Query(promql="time()", unit="s")
