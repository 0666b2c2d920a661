"""What a simulated engine can do: speeds and capacities of a model on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from routing_agent import hardware

_MAY_BE_ZERO = frozenset(
    (
        "decode_step_s", "decode_step_per_sequence_s", "step_overhead_s",
        "adapter_copy_s", "adapter_read_s",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The speeds and capacities of one engine process; immutable, so that a run can be repeated.

    One step of the engine takes as long as its slower half: reading the weights
    (`decode_step_s`) or computing the prefill tokens (`prefill_tokens_per_s`), plus a little for
    every sequence that decodes and what every step costs besides (`step_overhead_s`).
    """

    prefill_tokens_per_s: float
    decode_step_s: float
    decode_step_per_sequence_s: float
    max_running_sequences: int
    kv_blocks: int
    block_tokens: int
    step_token_budget: int
    context_tokens: int
    step_overhead_s: float = 0.0  # not overlapped with computing: scheduling, starting kernels
    prefix_cache: bool = True
    weights_bytes: int = 15_231_233_024  # of Qwen2.5-7B in bf16
    kv_bytes_per_token: int = 57_344  # of the same
    speed: float = 1.0  # times the real engine's: what has to be loaded comes as much sooner
    adapter_slots: int = 8  # LoRA adapters in one batch (vLLM's max_loras; its own default is 1)
    adapter_host_slots: int = 32  # in host memory (max_cpu_loras)
    adapter_copy_s: float = 0.02  # host memory to GPU: 160 MB (rank 32) at 8 GB/s
    adapter_read_s: float = 0.16  # disk to host memory, at 1 GB/s

    def __post_init__(self) -> None:
        """Refuse a profile that no engine could have."""
        for name in self.__slots__:
            value = getattr(self, name)
            if name in _MAY_BE_ZERO and value < 0:
                raise ValueError(f"{name} is {value}; it must not be negative")
            if name not in _MAY_BE_ZERO and name != "prefix_cache" and value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")

    @property
    def kv_capacity_tokens(self) -> int:
        """How many tokens the KV cache holds."""
        return self.kv_blocks * self.block_tokens

    @property
    def longest_request_tokens(self) -> int:
        """How many tokens, prompt and output together, a single request may have."""
        return min(self.context_tokens, self.kv_capacity_tokens)

    def faster(self, factor: float) -> Profile:
        """Give the same engine with every speed multiplied by `factor`."""
        return replace(
            self,
            prefill_tokens_per_s=self.prefill_tokens_per_s * factor,
            decode_step_s=self.decode_step_s / factor,
            decode_step_per_sequence_s=self.decode_step_per_sequence_s / factor,
            speed=self.speed * factor,
            step_overhead_s=self.step_overhead_s / factor,
            adapter_copy_s=self.adapter_copy_s / factor,
            adapter_read_s=self.adapter_read_s / factor,
        )


# The reference pair: all other profiles are derived from what it reaches of its hardware.
# Published figures for it do not fit one another: 25 ms a token, 300 tokens/s at batch 1, 2,500 at
# 32, and 50 requests/s are quoted side by side. 300 tokens/s would be 3.3 ms a token, less than the
# 7.5 ms it takes to read the weights once; 25 ms at batch 32 would be 1,280 tokens/s. We keep the
# throughput at 32 that the memory allows: 32 / (12 ms + 32 x 0.025 ms) = 2,500 tokens/s, and 83
# tokens/s alone. 50 requests/s hold only for answers of about 50 tokens.
# An A100-80GB holds 80 GB x 0.92 - 15 GB of weights - 2 GB of activations = 56 GB of KV cache; a
# token of Qwen2.5-7B takes 2 x 28 layers x 4 KV heads x 128 x 2 bytes = 57,344: 61,000 blocks.
A100_QWEN_7B = Profile(
    prefill_tokens_per_s=4300.0,
    decode_step_s=0.012,
    decode_step_per_sequence_s=0.000025,
    max_running_sequences=hardware.MAX_RUNNING_SEQUENCES,
    kv_blocks=61_000,
    block_tokens=16,
    step_token_budget=512,  # the chunk of Sarathi-Serve: bounds the stall that a prefill causes
    context_tokens=32_768,
)

# An embedding model of about 0.5 billion parameters: prefill only, short context.
A100_EMBEDDING = Profile(
    prefill_tokens_per_s=40_000.0,
    decode_step_s=0.004,
    decode_step_per_sequence_s=0.0,
    max_running_sequences=256,
    kv_blocks=16_384,
    block_tokens=16,
    step_token_budget=8192,
    context_tokens=8192,
    prefix_cache=False,
    weights_bytes=1_135_509_504,
    kv_bytes_per_token=98_304,
)

_UNLIMITED = 1 << 50  # tokens


def prefill_only(tokens_per_s: float, *, kv_blocks: int, block_tokens: int) -> Profile:
    """Give a plain yardstick: prompts one after the other, answers and steps cost nothing."""
    return Profile(
        prefill_tokens_per_s=tokens_per_s,
        decode_step_s=0.0,
        decode_step_per_sequence_s=0.0,
        max_running_sequences=1,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        step_token_budget=_UNLIMITED,
        context_tokens=_UNLIMITED,
    )


def derived(gpu: hardware.Gpu, model: hardware.Model) -> Profile | None:
    """Derive a pair's profile from makers' figures; None if the model does not fit the GPU."""
    block_tokens = A100_QWEN_7B.block_tokens
    kv_blocks = int(hardware.kv_bytes(gpu, model) / model.kv_bytes_per_token / block_tokens)
    if kv_blocks * block_tokens < _LEAST_KV_TOKENS:
        return None
    return Profile(
        prefill_tokens_per_s=hardware.prefill_tokens_per_s(gpu, model),
        decode_step_s=hardware.decode_step_s(gpu, model),
        decode_step_per_sequence_s=hardware.decode_step_per_sequence_s(gpu),
        max_running_sequences=A100_QWEN_7B.max_running_sequences,
        kv_blocks=kv_blocks,
        block_tokens=block_tokens,
        step_token_budget=A100_QWEN_7B.step_token_budget,
        context_tokens=model.context_tokens,
        weights_bytes=model.weights_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
    )


def _pairs() -> Iterator[tuple[str, Profile]]:
    for gpu_name, gpu in hardware.GPUS.items():
        for model_name, model in hardware.MODELS.items():
            profile = derived(gpu, model)
            if profile is not None:
                yield f"{gpu_name}-{model_name}", profile


_LEAST_KV_TOKENS = 16_384  # below, an engine could hardly hold one long request
DEFAULT_PROFILE = "a100-80gb-qwen2.5-7b"
EMBEDDING_PROFILE = "a100-80gb-embedding"
PROFILES = dict(_pairs()) | {DEFAULT_PROFILE: A100_QWEN_7B, EMBEDDING_PROFILE: A100_EMBEDDING}
