"""What the planner is told: its fields with units and bounds, and where each value is from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from controlplane.domain.capacity import BYTES_PER_VALUE
from controlplane.domain.errors import Invalid
from routing_agent import hardware

ENTERED: Final = "entered"
_HUGE: Final = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One input: what it is called, its unit, and what it may be."""

    name: str
    label: str
    group: Literal["load", "model", "gpu"]
    kind: Literal["number", "whole", "choice"]
    unit: str = ""
    help: str = ""
    least: float = 0.0
    most: float = _HUGE
    is_above_least: bool = False  # the least value itself is refused
    choices: tuple[str, ...] = ()


FIELDS: Final = (
    Field(name="peak_requests_per_s", label="Peak", group="load", kind="number",
          unit="requests/s", help="The busiest the load gets."),
    Field(name="replica_requests_per_s", label="Productivity of a replica", group="load",
          kind="number", unit="requests/s", is_above_least=True,
          help="What one replica carries within its targets: measure it with your requests."),
    Field(name="buffer_ratio", label="Buffer", group="load", kind="number", unit="ratio", most=10,
          help="0.3 means 30 % to spare; 0.3 to 0.5 is usual."),
    Field(name="context_tokens", label="Context length", group="load", kind="whole",
          unit="tokens", least=1, most=1e9,
          help="Prompt and answer of one request, for which concurrency is told."),
    Field(name="model", label="Model", group="model", kind="choice",
          choices=tuple(hardware.MODELS), help="Fills in the five figures after it."),
    Field(name="parameters", label="Parameters", group="model", kind="whole", least=1,
          help="Of all weights; 7.6e9 is understood."),
    Field(name="layers", label="Layers", group="model", kind="whole", least=1, most=1e5,
          help="num_hidden_layers in config.json."),
    Field(name="kv_heads", label="KV heads", group="model", kind="whole", least=1, most=1e5,
          help="num_key_value_heads in config.json."),
    Field(name="head_size", label="Head size", group="model", kind="whole", least=1, most=1e5,
          help="head_dim, or hidden_size / num_attention_heads."),
    Field(name="longest_context_tokens", label="Longest context", group="model", kind="whole",
          unit="tokens", least=1, most=1e9, help="What the model can at most."),
    Field(name="weight_dtype", label="Weights are", group="model", kind="choice",
          choices=tuple(BYTES_PER_VALUE)),
    Field(name="kv_dtype", label="KV cache is", group="model", kind="choice",
          choices=tuple(BYTES_PER_VALUE)),
    Field(name="gpu", label="GPU", group="gpu", kind="choice", choices=tuple(hardware.GPUS),
          help="Fills in its memory."),
    Field(name="gpu_memory_gb", label="Memory of a GPU", group="gpu", kind="number",
          unit="GB", is_above_least=True, most=1e5,
          help="As data sheets count, 1e9 bytes: 80 GB are 74.5 GiB."),
    Field(name="gpus_per_replica", label="GPUs of a replica", group="gpu", kind="whole", least=1,
          most=1024, help="Tensor parallel: they share weights and KV cache."),
    Field(name="memory_share", label="Memory the engine takes", group="gpu", kind="number",
          unit="ratio", is_above_least=True, most=1, help="vLLM's --gpu-memory-utilization."),
    Field(name="gpu_usd_per_hour", label="Price of a GPU", group="gpu", kind="number",
          unit="USD/h", most=1e6, help="An A100-80GB is 2 to 3 USD."),
)  # fmt: skip
BY_NAME: Final[Mapping[str, Field]] = {f.name: f for f in FIELDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A value, where it is from, and of when it is; `at` is None for what does not age."""

    value: Any
    source: str
    at: datetime | None = None


Inputs = Mapping[str, Known]

DEFAULTS: Final[Inputs] = {
    "buffer_ratio": Known(value=0.3, source="default, the lower end of 0.3 to 0.5"),
    "weight_dtype": Known(value="bf16", source="default"),
    "kv_dtype": Known(value="bf16", source="default"),
    "gpus_per_replica": Known(value=1, source="default"),
    "memory_share": Known(value=hardware.MEMORY_SHARE, source="default of vLLM"),
    "gpu_usd_per_hour": Known(value=2.5, source="default, an A100-80GB at 2 to 3 USD"),
}
# Facts of a model, of which another value beside its name contradicts it. How weights and KV cache
# are stored is a choice, not a fact.
_MODEL_FACTS: Final = ("parameters", "layers", "kv_heads", "head_size", "longest_context_tokens")


def gathered(entered: Mapping[str, Any], found: Inputs) -> Inputs:
    """Give every known input with its source: what was entered before what was found.

    `entered` holds values by field name, None for what was left out; `found` is what a pool
    tells. A named model or GPU brings its facts from the table of hardware.

    Raises:
        Invalid: a field is unknown, a value impossible, or two entered values contradict.
    """
    told = {n: v for n, v in entered.items() if v is not None}
    for name, value in told.items():
        _check(name, value)
    named = {**_gpu_facts(told), **_model_facts(told)}
    for name in told.keys() & named.keys():
        if told[name] != named[name].value:
            raise _contradiction(name, told[name], named[name])
    known = {**DEFAULTS, **found, **named}
    known |= {n: Known(value=v, source=ENTERED) for n, v in told.items()}
    if "context_tokens" not in known and "longest_context_tokens" in known:
        longest = known["longest_context_tokens"]
        known["context_tokens"] = Known(
            value=longest.value, source=f"longest context ({longest.source})", at=longest.at
        )
    return {f.name: known[f.name] for f in FIELDS if f.name in known}


def _contradiction(name: str, value: Any, fact: Known) -> Invalid:
    field = BY_NAME[name]
    return Invalid(
        f"{field.label} is entered as {value:.12g}, but {fact.source} says {fact.value:.12g}."
        f" Leave one of the two out.",
        code="contradiction",
        field=name,
    )


def _model_facts(told: Mapping[str, Any]) -> dict[str, Known]:
    if "model" not in told:
        return {}
    model = hardware.MODELS[told["model"]]
    values = (model.parameters, model.layers, model.kv_heads, model.head_size, model.context_tokens)
    facts = zip(_MODEL_FACTS, values, strict=True)
    return {name: Known(value=value, source=model.source) for name, value in facts}


def _gpu_facts(told: Mapping[str, Any]) -> dict[str, Known]:
    if "gpu" not in told:
        return {}
    gpu = hardware.GPUS[told["gpu"]]
    return {"gpu_memory_gb": Known(value=gpu.memory_bytes / 1e9, source=gpu.source)}


def _check(name: str, value: Any) -> None:
    field = BY_NAME.get(name)
    if field is None:
        raise Invalid(
            f"There is no input {name!r}. Known are: {', '.join(BY_NAME)}.",
            code="unknown_input",
            field=name,
        )
    problem = _problem(field, value)
    if problem:
        raise Invalid(f"{field.label} is {value}: {problem}", field=name)


def _problem(field: Field, value: Any) -> str:
    if field.kind == "choice":
        return "" if value in field.choices else f"known are {', '.join(field.choices)}."
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return "it must be a number."
    if field.kind == "whole" and value != int(value):
        return "it must be a whole number."
    if value < field.least or value > field.most or (field.is_above_least and value == field.least):
        return f"it must be {_bounds(field)}."
    return ""


def _bounds(field: Field) -> str:
    lower = "above" if field.is_above_least else "at least"
    upper = "" if field.most == _HUGE else f" and at most {field.most:g}"
    return f"{lower} {field.least:g}{upper}"
