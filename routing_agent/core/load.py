"""How many tokens a request is expected to cost before anybody has counted them."""

from __future__ import annotations

from typing import Final

# What a request that names no limit is expected to write, and the most that is believed of a limit:
# clients set max_tokens as a ceiling, answers rarely come near it.
DEFAULT_OUTPUT_TOKENS: Final = 256
BELIEVED_OUTPUT_TOKENS: Final = 1024


def prompt_tokens(prompt_bytes: int, bytes_per_token: float) -> int:
    """Estimate a prompt's tokens from its bytes, at least one."""
    return max(int(prompt_bytes / bytes_per_token), 1)


def output_tokens(max_tokens: int | None) -> int:
    """Estimate how many tokens an answer will have."""
    if max_tokens is None:
        return DEFAULT_OUTPUT_TOKENS
    return max(min(max_tokens, BELIEVED_OUTPUT_TOKENS), 0)
