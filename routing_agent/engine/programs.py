"""Which engines this agent may start, and with what command: by its own configuration alone.

What the control plane names is looked up here; nothing it says becomes a command by itself.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from routing_agent.engine.command import (
    AdapterOptions,
    CommandRefused,
    StartCommand,
    StartOptions,
    start_command,
)
from routing_agent.wire import ExecutorFacts, ProgramName, StartEngine

CHECKOUT: Final = Path(__file__).resolve().parents[2]

# Adapters of one batch: each takes GPU memory from the start, whether it is used or not. More may
# be loaded and wait in the machine's memory.
BATCH_ADAPTERS: Final = 8

# Options of the simulated engine that may be set, and what their value is.
SIMULATED_OPTIONS: Final[Mapping[str, type]] = {
    "--answer-tokens": int, "--block-tokens": int, "--decode-step-ms": float, "--embedding": bool,
    "--kv-blocks": int, "--load-path": str, "--max-model-len": int, "--max-num-seqs": int,
    "--prefill-rate": float, "--profile": str, "--shutdown-timeout": float, "--speed": float,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """What may be started here: programs with their executables, weights, ports."""

    programs: Mapping[ProgramName, str]
    first_port: int
    last_port: int
    host: str = "127.0.0.1"  # engines listen here
    address: str = "127.0.0.1"  # and are reached here by other agents
    folders: tuple[Path, ...] = ()  # weights are looked for below these

    @property
    def facts(self) -> ExecutorFacts:
        """Give what the control plane may know of it."""
        return ExecutorFacts(
            programs=tuple(sorted(self.programs)),
            address=self.address,
            first_port=self.first_port,
            last_port=self.last_port,
        )

    def command(self, wanted: StartEngine) -> StartCommand:
        """Give the command for an engine; CommandRefused says what is not allowed or missing."""
        executable = self.programs.get(wanted.program)
        if executable is None:
            allowed = ", ".join(sorted(self.programs)) or "none"
            raise CommandRefused(
                f"This agent may not start {wanted.program}. By --engine-program it may: {allowed}."
            )
        if not self.first_port <= wanted.port <= self.last_port:
            raise CommandRefused(
                f"Port {wanted.port} is outside --engine-ports {self.first_port}-{self.last_port}."
            )
        found = shutil.which(executable)
        if found is None:
            raise CommandRefused(f"--engine-program {wanted.program}: no executable {executable}.")
        if wanted.program == "simulated":
            return StartCommand((found, *self._simulated(wanted)), {"PYTHONPATH": str(CHECKOUT)})
        command = start_command(wanted.program, self._options(wanted))
        return replace(command, argv=(found, *command.argv[1:]))

    def _options(self, wanted: StartEngine) -> StartOptions:
        return StartOptions(
            model_path=self._weights(wanted.model_source),
            served_name=wanted.served_name,
            port=wanted.port,
            host=self.host,
            context_tokens=wanted.context_tokens,
            memory_ratio=wanted.memory_ratio if wanted.gpus else None,  # a share of GPU memory
            gpus=max(len(wanted.gpus), 1),
            adapters=_adapters(wanted),
            api_key=wanted.api_key,
            more=wanted.arguments,
        )

    def _weights(self, source: str) -> str:
        """Find weights below an allowed folder, whatever links or dots the name has."""
        for folder in self.folders:
            path = (folder / source).resolve()
            if source and path.is_relative_to(folder.resolve()) and path.exists():
                return str(path)
        shown = ", ".join(map(str, self.folders)) or "none"
        raise CommandRefused(
            f"No weights {source!r} below the folders of --engine-models ({shown}): put them there,"
            " or name the folder."
        )

    def _simulated(self, wanted: StartEngine) -> tuple[str, ...]:
        words = ["-m", "routing_agent", "simulate-engine", "--host", self.host]
        words += ["--port", str(wanted.port), f"--model={wanted.served_name}"]
        if (room := _adapters(wanted)) is not None:
            words += [f"--max-loras={room.slots}", f"--max-cpu-loras={room.max_loaded}"]
            words.append(f"--max-lora-rank={room.max_rank}")
        for option, value in wanted.arguments.items():
            kind = SIMULATED_OPTIONS.get(option)
            if kind is None:
                known = ", ".join(SIMULATED_OPTIONS)
                raise CommandRefused(f"{option} cannot be set for simulated. These can: {known}.")
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise CommandRefused(f"{option} takes a value of type {kind.__name__}.")
            if value is not False:
                words.append(option if value is True else f"{option}={value}")
        return tuple(words)


def _adapters(wanted: StartEngine) -> AdapterOptions | None:
    """Give how much room for adapters an engine is started with; None: it takes none."""
    if not wanted.adapter_slots:
        return None
    return AdapterOptions(
        max_rank=wanted.adapter_max_rank,
        slots=min(wanted.adapter_slots, BATCH_ADAPTERS),
        max_loaded=wanted.adapter_slots,
    )


def default_executable(program: ProgramName) -> str:
    """Give what starts a program where the configuration names no file."""
    own: Mapping[ProgramName, str] = {
        "vllm": "vllm",
        "llamacpp": "llama-server",
        "tgi": "text-generation-launcher",
    }
    return own.get(program, sys.executable)
