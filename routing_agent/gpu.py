"""GPU readings through NVML; a machine without a driver simply has none.

Simulated GPUs stand in on machines without real ones and are always flagged as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import structlog

from routing_agent.wire import Gpu

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SimulatedGpus:
    """What `--simulated-gpus N,MODEL,MEMORY` asks for."""

    count: int
    model: str
    memory_bytes: int

    def read(self) -> tuple[Gpu, ...]:
        """Give the simulated inventory; utilisation and temperature stay unknown."""
        return tuple(
            Gpu(index=i, model=self.model, memory_bytes=self.memory_bytes, simulated=True)
            for i in range(self.count)
        )


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at the node's GPUs and driver; empty when there is no driver."""

    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""


class GpuReader:
    """Reads the node's GPUs as often as it is asked; NVML is opened once and may be absent."""

    def __init__(self, simulated: SimulatedGpus | None = None) -> None:
        self._simulated = simulated
        self._nvml = None if simulated else _open_nvml()

    def read(self) -> Readings:
        """Give the current readings; a value that the driver does not tell is None."""
        if self._simulated is not None:
            return Readings(gpus=self._simulated.read())
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
