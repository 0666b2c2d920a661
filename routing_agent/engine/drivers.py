"""Which driver speaks for which engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routing_agent.engine.base import Driver, ServedModel
from routing_agent.engine.llamacpp import LlamaCpp
from routing_agent.engine.openai import OpenAi
from routing_agent.engine.sglang import Sglang
from routing_agent.engine.tgi import Tgi
from routing_agent.engine.triton import Triton
from routing_agent.engine.vllm import Vllm
from routing_agent.wire import EngineName

_DRIVERS: Final[Mapping[EngineName, Driver]] = {
    "vllm": Vllm(),
    "sglang": Sglang(),
    "llamacpp": LlamaCpp(),
    "tgi": Tgi(),
    "triton": Triton(),
    "openai": OpenAi(),
}
_OWNERS: Final[Mapping[str, EngineName]] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llamacpp",
    "Triton Inference Server": "triton",
}


def driver_for(engine: EngineName) -> Driver:
    """Give the driver of an engine."""
    return _DRIVERS[engine]


def engine_of(models: list[ServedModel]) -> EngineName:
    """Recognise an engine by how it signs its models (`owned_by`)."""
    owners = (_owner(model) for model in models)
    return next((engine for engine in owners if engine), "openai")


def _owner(model: ServedModel) -> EngineName | None:
    # TGI signs a model with its own id and gives it no date.
    if model.owned_by == model.id and model.created == 0:
        return "tgi"
    return _OWNERS.get(model.owned_by or "")
