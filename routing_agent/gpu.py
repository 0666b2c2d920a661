"""GPU readings through NVML; a machine without a driver simply has none.

Simulated GPUs stand in on machines without real ones and are always flagged as such. Their readings
come from the simulated engines that hold them, off the pages that the agent scrapes anyway.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from routing_agent.engine.prometheus import Reader
from routing_agent.wire import Endpoint, Gpu

log = structlog.get_logger()


SIMULATED_GPU_UTILIZATION: Final = "simulated_gpu_utilization_ratio"
SIMULATED_GPU_MEMORY_USED: Final = "simulated_gpu_memory_used_bytes"
OLD_AFTER_S = 10.0  # a reading of an engine that answers no longer is none

_simulated_names = Reader((SIMULATED_GPU_UTILIZATION, SIMULATED_GPU_MEMORY_USED))


@dataclass(frozen=True, slots=True)
class SimulatedReading:
    """What a simulated engine said last of each GPU it holds."""

    at: float  # monotonic
    utilization_ratio: float | None
    memory_used_bytes: int | None


class SimulatedReadings:
    """The newest readings of a node's simulated GPUs, by index."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._newest: dict[int, SimulatedReading] = {}

    def note_page(self, endpoint: Endpoint, page: str) -> None:
        """Take the readings off an engine's metrics page, if it is on this node and tells any."""
        if endpoint.node != self._node or not endpoint.gpus:
            return
        found = _simulated_names.read(page)
        used = found.total(SIMULATED_GPU_MEMORY_USED)
        reading = SimulatedReading(
            at=time.monotonic(),
            utilization_ratio=found.mean(SIMULATED_GPU_UTILIZATION),
            memory_used_bytes=None if used is None else int(used) // len(endpoint.gpus),
        )
        if found:
            self._newest |= dict.fromkeys(endpoint.gpus, reading)

    def fresh(self) -> dict[int, SimulatedReading]:
        """Give the readings that are not old."""
        oldest = time.monotonic() - OLD_AFTER_S
        return {i: r for i, r in self._newest.items() if r.at >= oldest}


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """What `--simulated-gpus N,MODEL,MEMORY` asks for."""

    count: int
    model: str
    memory_bytes: int

    def read(self, readings: Mapping[int, SimulatedReading]) -> tuple[Gpu, ...]:
        """Give the simulated inventory; what no engine tells of, and temperature, stay unknown."""
        return tuple(self._gpu(i, readings.get(i)) for i in range(self.count))

    def _gpu(self, index: int, reading: SimulatedReading | None) -> Gpu:
        return Gpu(
            index=index,
            model=self.model,
            memory_bytes=self.memory_bytes,
            utilization_ratio=reading.utilization_ratio if reading else None,
            memory_used_bytes=reading.memory_used_bytes if reading else None,
            simulated=True,
        )


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at the node's GPUs and driver; empty when there is no driver."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""


class GpuReader:
    """Reads the node's GPUs as often as it is asked; NVML is opened once and may be absent."""

    def __init__(
        self,
        simulated: SimulatedGpus | None = None,
        readings: SimulatedReadings | None = None,
    ) -> None:
        self._simulated = simulated
        self._simulated_readings = readings
        self._nvml = None if simulated else _open_nvml()

    def read(self) -> Readings:
        """Give the current readings; a value that the driver does not tell is None."""
        if self._simulated is not None:
            told = self._simulated_readings.fresh() if self._simulated_readings else {}
            return Readings(gpus=self._simulated.read(told))
        if self._nvml is None:
            return Readings()
        try:
            return _readings(self._nvml)
        except self._nvml.NVMLError as error:
            log.warning("gpu_read_failed", error=str(error))
            return Readings()

    def close(self) -> None:
        """Let NVML go."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def _open_nvml() -> Any:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:  # no driver, or no permission: both are ordinary
        log.info("gpu_none", reason=str(error))
        return None
    return pynvml


def _readings(nvml: Any) -> Readings:
    count = nvml.nvmlDeviceGetCount()
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    return Readings(
        gpus=tuple(_gpu(nvml, i) for i in range(count)),
        driver_version=_text(nvml.nvmlSystemGetDriverVersion()),
        cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _optional(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
    degrees = _optional(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    return Gpu(
        index=index,
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory.total if memory else 0,
        memory_used_bytes=memory.used if memory else None,
        utilization_ratio=rates.gpu / 100 if rates else None,
        temperature_celsius=None if degrees is None else float(degrees),
    )


def _optional(nvml: Any, read: Any, *args: Any) -> Any:
    """Call an NVML function that some GPUs (MIG slices, old cards) do not support."""
    try:
        return read(*args)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
