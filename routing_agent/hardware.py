"""What GPUs and models are like, by their makers' figures, and what an engine makes of a pair.

Figures of a GPU are its data sheet's (dense bf16, no sparsity); those of a model its published
configuration's. What an engine reaches of them is taken from one pair only, see `BANDWIDTH_SHARE`;
so speeds of other pairs are derived, not measured, and good for comparing rather than promising.
The simulation's profiles and the control plane's planner read the same table: this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, by its data sheet."""

    memory_bytes: float
    memory_bytes_per_s: float
    flops_per_s: float  # bf16, dense
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model, by its config.json and the size of its bf16 weights."""

    parameters: int
    layers: int
    kv_heads: int
    head_size: int
    context_tokens: int
    source: str

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights in bf16."""
        return 2 * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2


GPUS: Final = {
    "a100-80gb": Gpu(
        memory_bytes=80e9, memory_bytes_per_s=2.039e12, flops_per_s=312e12,
        source="NVIDIA A100 data sheet, 80GB SXM",
    ),
    "h100-80gb": Gpu(
        memory_bytes=80e9, memory_bytes_per_s=3.35e12, flops_per_s=989e12,
        source="NVIDIA H100 data sheet, SXM",
    ),
    "h200": Gpu(
        memory_bytes=141e9, memory_bytes_per_s=4.8e12, flops_per_s=989e12,
        source="NVIDIA H200 data sheet, SXM",
    ),
    "l40s": Gpu(
        memory_bytes=48e9, memory_bytes_per_s=0.864e12, flops_per_s=362e12,
        source="NVIDIA L40S data sheet",
    ),
    "l4": Gpu(
        memory_bytes=24e9, memory_bytes_per_s=0.3e12, flops_per_s=121e12,
        source="NVIDIA L4 data sheet",
    ),
}  # fmt: skip

MODELS: Final = {
    "qwen2.5-7b": Model(
        parameters=7_615_616_512, layers=28, kv_heads=4, head_size=128, context_tokens=32_768,
        source="Qwen/Qwen2.5-7B-Instruct config.json",
    ),
    "qwen2.5-14b": Model(
        parameters=14_770_033_664, layers=48, kv_heads=8, head_size=128, context_tokens=32_768,
        source="Qwen/Qwen2.5-14B-Instruct config.json",
    ),
    "qwen2.5-32b": Model(
        parameters=32_763_876_352, layers=64, kv_heads=8, head_size=128, context_tokens=32_768,
        source="Qwen/Qwen2.5-32B-Instruct config.json",
    ),
    "llama-3.1-8b": Model(
        parameters=8_030_261_248, layers=32, kv_heads=8, head_size=128, context_tokens=131_072,
        source="meta-llama/Llama-3.1-8B-Instruct config.json",
    ),
    # Before grouped-query attention: every head has keys and values of its own.
    "llama-2-7b": Model(
        parameters=6_738_415_616, layers=32, kv_heads=32, head_size=128, context_tokens=4_096,
        source="meta-llama/Llama-2-7b-chat-hf config.json",
    ),
}  # fmt: skip

# The pair that the shares below are taken from runs a decode step in 12 ms and prefills 4,300
# tokens/s (`profiles.A100_QWEN_7B`): reading 15.2 GB of weights in 12 ms is 62 % of 2,039 GB/s, and
# 2 x 7.6e9 operations a token at 4,300 tokens/s are 21 % of 312 TFLOP/s.
BANDWIDTH_SHARE: Final = 0.62
COMPUTE_SHARE: Final = 0.21

# A sequence adds 0.025 ms to a step on that GPU: sampling and reading its KV, so it goes with
# memory bandwidth.
SEQUENCE_S_TIMES_BANDWIDTH: Final = 0.000025 * 2.039e12

MEMORY_SHARE: Final = 0.92  # vLLM's --gpu-memory-utilization, its default
ACTIVATION_BYTES: Final = 2e9  # what vLLM's profile run finds for such models, rounded
MAX_RUNNING_SEQUENCES: Final = 256  # vLLM's --max-num-seqs, its default


def decode_step_s(gpu: Gpu, model: Model) -> float:
    """Estimate the shortest step: the weights are read once."""
    return model.weights_bytes / (gpu.memory_bytes_per_s * BANDWIDTH_SHARE)


def decode_step_per_sequence_s(gpu: Gpu) -> float:
    """Estimate what one more sequence adds to a step."""
    return SEQUENCE_S_TIMES_BANDWIDTH / gpu.memory_bytes_per_s


def prefill_tokens_per_s(gpu: Gpu, model: Model) -> float:
    """Estimate the prefill rate: two operations a parameter and token."""
    return gpu.flops_per_s * COMPUTE_SHARE / (2 * model.parameters)


def kv_bytes(gpu: Gpu, model: Model) -> float:
    """Tell how much memory is left for the KV cache; below zero, the model does not fit."""
    return gpu.memory_bytes * MEMORY_SHARE - model.weights_bytes - ACTIVATION_BYTES
