"""Which driver speaks for which engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routing_agent.engine.base import Driver, ServedModel
from routing_agent.engine.openai import OpenAi
from routing_agent.engine.sglang import Sglang
from routing_agent.engine.vllm import Vllm
from routing_agent.wire import EngineName

_OPENAI: Final = OpenAi()
_DRIVERS: Final[Mapping[str, Driver]] = {"vllm": Vllm(), "sglang": Sglang(), "openai": _OPENAI}
_OWNERS: Final[Mapping[str, EngineName]] = {"vllm": "vllm", "sglang": "sglang"}


def driver_for(engine: EngineName) -> Driver:
    """Give the driver of an engine; those without one of their own are driven by the OpenAI API."""
    return _DRIVERS.get(engine, _OPENAI)


def engine_of(models: list[ServedModel]) -> EngineName:
    """Recognise an engine by how it signs its models (`owned_by`)."""
    owners = (_OWNERS.get(model.owned_by or "") for model in models)
    return next((engine for engine in owners if engine), "openai")
