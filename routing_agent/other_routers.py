"""What users of other routers type, and how `serve` is told the same.

The options are those of sglang-router 0.3 and vllm-router 0.1; docs/drop-in.md shows this table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--api-key": "--engine-key-file FILE (the engines' key; your clients': --client-key-file)",
        "--max-concurrent-requests": "--max-concurrency N (for each engine)",
        "--queue-size": "--queue-limit N (for each engine); 0: --overload-policy reject",
        "--queue-timeout-secs": "--queue-deadline SECONDS",
        "--request-timeout-secs": "--end-to-end-timeout SECONDS (for streams --stall-timeout)",
        "--max-payload-size": "--body-limit BYTES",
        "--retry-max-retries": "--max-retries N",
        "--disable-retries": "--max-retries 0",
        "--retry-initial-backoff-ms": "--retry-backoff SECONDS",
        "--cb-failure-threshold": "--breaker-failures N",
        "--cb-timeout-duration-secs": "--breaker-open SECONDS",
        "--health-check-interval-secs": "--probe-interval SECONDS",
        "--health-check-timeout-secs": "--probe-timeout SECONDS",
        "--health-failure-threshold": "--probe-failures N",
        "--health-success-threshold": "--probe-recoveries N",
        "--health-check-endpoint": "nothing: each make has its page (--engine NAME tells the make)",
        "--worker-startup-timeout-secs": "nothing: an engine joins when it answers",
        "--shutdown-grace-period-secs": "--drain-timeout SECONDS",
        "--prometheus-port": "--admin-port PORT (/metrics is there)",
        "--prometheus-host": "--admin-host HOST",
        "--request-id-headers": "nothing: X-Request-Id is taken over and sent to the engine",
        "--tls-cert-path": "--tls-cert-file FILE",
        "--tls-key-path": "--tls-key-file FILE",
        "--ca-cert-paths": "--engine-ca-file FILE",
        "--otlp-traces-endpoint": "--otlp-endpoint URL",
        "--log-dir": "nothing: the log goes to standard error, a JSON object a line",
    }
)


def hints(words: Iterable[str]) -> list[str]:
    """Give a line for each word that is another router's option."""
    names = dict.fromkeys(word.partition("=")[0] for word in words)
    return [f"{name} is here: {FLAGS[name]}" for name in names if name in FLAGS]
