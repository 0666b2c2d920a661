"""GPU readings: real where there is a driver, none where there is not, simulated ones flagged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from routing_agent import gpu
from routing_agent.gpu import GpuReader, Readings, SimulatedGpus, SimulatedReadings
from routing_agent.wire import Endpoint


class NoDriver(Exception):
    """What NVML raises."""


class Driver:
    """NVML with two GPUs, the second of which tells less. A driver is not to be had in tests."""

    NVMLError = NoDriver
    NVML_TEMPERATURE_GPU = 0

    def __init__(self):
        self.is_broken = False
        self.is_open = True

    def nvmlDeviceGetCount(self):  # noqa: N802 - NVML's names
        if self.is_broken:
            raise NoDriver("GPU is lost")
        return 2

    def nvmlSystemGetCudaDriverVersion(self):  # noqa: N802
        return 12040

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return b"550.54"

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetName(self, _handle):  # noqa: N802
        return "NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, _handle):  # noqa: N802
        return SimpleNamespace(total=80, used=20)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        if handle == 1:
            raise NoDriver("not supported")
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetTemperature(self, handle, _sensor):  # noqa: N802
        if handle == 1:
            raise NoDriver("not supported")
        return 61

    def nvmlShutdown(self):  # noqa: N802
        self.is_open = False


@pytest.fixture
def driver(monkeypatch):
    driver = Driver()
    monkeypatch.setattr(gpu, "_open_nvml", lambda: driver)
    return driver


def test_a_machine_without_a_driver_has_no_gpus():
    reader = GpuReader()
    assert isinstance(reader.read(), Readings)
    reader.close()
    assert reader.read() == Readings()


def test_what_the_driver_tells_is_read_and_what_it_does_not_tell_is_none(driver):
    reader = GpuReader()
    readings = reader.read()
    assert (readings.driver_version, readings.cuda_version) == ("550.54", "12.4")
    first, second = readings.gpus
    assert (first.model, first.memory_bytes, first.memory_used_bytes) == ("NVIDIA H100", 80, 20)
    assert (first.utilization_ratio, first.temperature_celsius) == (0.5, 61.0)
    assert (second.utilization_ratio, second.temperature_celsius) == (None, None)
    assert not first.simulated
    reader.close()
    assert not driver.is_open


def test_a_driver_that_fails_is_no_reason_to_stop(driver):
    reader = GpuReader()
    driver.is_broken = True
    assert reader.read() == Readings()


def test_simulated_gpus_say_so():
    reader = GpuReader(SimulatedGpus(count=2, model="H100", memory_bytes=80))
    gpus = reader.read().gpus
    assert [(g.index, g.simulated, g.utilization_ratio) for g in gpus] == [
        (0, True, None),
        (1, True, None),
    ]
    reader.close()


PAGE = (
    "# TYPE simulated_gpu_utilization_ratio gauge\nsimulated_gpu_utilization_ratio 0.25\n"
    "# TYPE simulated_gpu_memory_used_bytes gauge\nsimulated_gpu_memory_used_bytes 40.0\n"
)


def test_a_simulated_gpus_readings_are_those_of_the_engine_that_holds_it():
    readings = SimulatedReadings("node-1")
    readings.note_page(Endpoint(replica="r1", url="http://e1", node="node-1", gpus=(1,)), PAGE)
    reader = GpuReader(SimulatedGpus(count=2, model="H100", memory_bytes=80), readings)
    idle, held = reader.read().gpus
    assert (held.utilization_ratio, held.memory_used_bytes, held.simulated) == (0.25, 40, True)
    assert (idle.utilization_ratio, idle.memory_used_bytes) == (None, None)


@pytest.mark.parametrize(
    ("node", "page"),
    [("node-2", PAGE), ("node-1", "vllm:num_requests_running 0\n")],
)
def test_another_nodes_engine_and_a_real_engine_tell_nothing(node, page):
    readings = SimulatedReadings("node-1")
    readings.note_page(Endpoint(replica="r1", url="http://e1", node=node, gpus=(0,)), page)
    assert readings.fresh() == {}


def test_the_reading_of_an_engine_that_fell_silent_is_no_reading(monkeypatch):
    monkeypatch.setattr(gpu, "OLD_AFTER_S", 0.0)
    readings = SimulatedReadings("node-1")
    readings.note_page(Endpoint(replica="r1", url="http://e1", node="node-1", gpus=(0,)), PAGE)
    assert readings.fresh() == {}
