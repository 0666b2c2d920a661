"""What the control plane asks an agent to do with engines on its node, and what became of it.

Actions carry names and arguments, never a command: the agent builds the command line itself, and
only from programs and folders that its own configuration allows. Each replica's actions are
numbered; a number that was obeyed is never obeyed again, and an older one is refused. So an action
may be sent as often as it takes.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from routing_agent.wire.base import Count, Message

# What an agent may start. `simulated` speaks as vLLM does.
ProgramName = Literal["vllm", "sglang", "llamacpp", "tgi", "triton", "simulated"]
ReplicaId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
Argument = str | int | float | bool


class StartEngine(Message, frozen=True, kw_only=True, tag_field="do", tag="start-engine"):
    """Start an engine process for a replica, unless it has one."""

    replica: ReplicaId
    program: ProgramName
    served_name: str
    port: Annotated[int, Meta(ge=1, le=65535)]
    model_source: str = ""  # below one of the folders the agent allows; simulated: not looked at
    gpus: tuple[Count, ...] = ()  # indices on the node
    memory_ratio: Annotated[float, Meta(gt=0, le=1)] | None = None  # share of each GPU's memory
    context_tokens: Count | None = None
    # LoRA adapters it may hold at once and the largest rank of one; no slots: it takes none.
    adapter_slots: Count = 0
    adapter_max_rank: Annotated[int, Meta(ge=1)] = 64
    api_key: str = ""  # the engine demands it; never shown, never logged
    arguments: dict[str, Argument] = {}  # by the engine's own option names, of those we know


class StopEngine(Message, frozen=True, kw_only=True, tag_field="do", tag="stop-engine"):
    """End the engine process of a replica: SIGTERM, then SIGKILL once its patience is over."""

    replica: ReplicaId
    patience_s: Annotated[float, Meta(ge=0, le=1800)] = 10.0  # for what still runs in it


class Action(Message, frozen=True, kw_only=True, tag_field="kind", tag="action"):
    """One thing to do."""

    id: str
    serial: Annotated[int, Meta(ge=1)]  # grows with every action for this replica
    expires_at: float  # Unix seconds by the control plane's clock: later it is not begun
    do: StartEngine | StopEngine


class ActionReceipt(Message, frozen=True, kw_only=True, tag_field="kind", tag="action-receipt"):
    """An agent's answer to an action: whether it took it. What becomes of it is in its reports."""

    outcome: Literal["accepted", "already_there", "refused_older", "expired", "refused"]
    detail: str = ""  # why it was refused, and what to change


class EngineProcess(Message, frozen=True, kw_only=True):
    """An engine process that an agent started, in its report."""

    replica: str
    state: Literal["running", "stopping", "stopped", "failed"]
    serial: Count = 0  # of the newest action obeyed for it
    pid: Count = 0
    started_at: float | None = None  # Unix seconds by the node's clock
    port: Count = 0
    gpus: tuple[Count, ...] = ()
    detail: str = ""  # how it failed
    log_tail: str = ""  # the end of what it wrote, once it has failed


class ExecutorFacts(Message, frozen=True, kw_only=True):
    """What an agent may start on its node, by its own configuration."""

    programs: tuple[ProgramName, ...] = ()
    address: str = "127.0.0.1"  # where other agents reach its engines
    first_port: Count = 0
    last_port: Count = 0
