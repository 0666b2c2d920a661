"""What an agent knows of its machine, and how it introduces itself."""

from __future__ import annotations

from routing_agent.wire.actions import ExecutorFacts
from routing_agent.wire.base import Count, Message, Ratio, Seconds


class Gpu(Message, frozen=True, kw_only=True):
    """One GPU, or one MIG slice of it. `None` = the node cannot tell (no NVML, simulated)."""

    index: Count
    model: str
    memory_bytes: Count = 0
    mig_profile: str = ""
    memory_used_bytes: Count | None = None
    utilization_ratio: Ratio | None = None
    temperature_celsius: float | None = None
    simulated: bool = False


class NodeFacts(Message, frozen=True, kw_only=True):
    """What an agent knows of the machine it runs on."""

    hostname: str = ""
    zone: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    executor: ExecutorFacts | None = None  # None: this agent starts no engines


class RegisterRequest(Message, frozen=True, kw_only=True, tag_field="kind", tag="register"):
    """An agent's first call, made with a one-time token."""

    token: str
    name: str  # the node's name
    traffic_url: str
    admin_url: str
    agent_version: str = ""
    node: NodeFacts = NodeFacts()


class RegisterReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="registered"):
    """What an agent keeps for good: its identity, its token and the key it will trust."""

    agent: str
    agent_token: str
    public_key: str  # Ed25519, base64
    lineage: str
    server_time: float
    report_interval_s: Seconds = 2.0
