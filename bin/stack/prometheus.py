"""The embedded Prometheus: only where its binary is on PATH."""

from __future__ import annotations

from stack import credentials
from stack.layout import Places, Ports
from stack.services import AGENTS, Plan, local

CONFIGURATION = """# Written by bin/up at every start.
global:
  scrape_interval: 5s
scrape_configs:
  - job_name: signalbox-agents
    static_configs:
      - targets: [{agents}]
  - job_name: engines
    static_configs:
      - targets: [{engines}]
  - job_name: control-plane
    static_configs:
      - targets: ["127.0.0.1:{web}"]
"""


def url(numbers: Ports) -> str:
    """Give the embedded Prometheus's address."""
    return local(numbers.prometheus)


def configure(here: Places, plan: Plan) -> None:
    """Write what it scrapes: agents, engines and the control plane."""
    numbers = plan.ports
    text = CONFIGURATION.format(
        agents=_targets([numbers.admin(n) for n in range(1, AGENTS + 1)]),
        engines=_targets([numbers.engine(n) for n in plan.engines]),
        web=numbers.web,
    )
    credentials.write_private(here.run / "prometheus.yml", text)


def _targets(ports: list[int]) -> str:
    return ", ".join(f'"127.0.0.1:{port}"' for port in ports)
