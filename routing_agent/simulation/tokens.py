"""Tokens of the simulated engine: four bytes of text each, hashed in blocks as a chain."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

BYTES_PER_TOKEN = 4  # what English text averages with the vocabularies of current models
VOCABULARY = 151_936  # Qwen2.5


def token_count(data: bytes) -> int:
    """Tell how many tokens a text has; never none."""
    return max(1, -(-len(data) // BYTES_PER_TOKEN))


def token_ids(data: bytes) -> list[int]:
    """Give a text's token ids: the same bytes always give the same ids."""
    return [xxhash.xxh3_64_intdigest(piece) % VOCABULARY for piece in _pieces(data)]


def token_strings(data: bytes) -> list[str]:
    """Give the text of each token."""
    return [piece.decode("utf-8", "replace") for piece in _pieces(data)]


def block_hashes(data: bytes, block_tokens: int, salt: str = "") -> list[int]:
    """Hash a text's full blocks, each with all that came before it; a salt keeps caches apart."""
    size = block_tokens * BYTES_PER_TOKEN
    chain = xxhash.xxh3_64_intdigest(salt.encode())
    hashes = []
    for start in range(0, len(data) - size + 1, size):
        chain = xxhash.xxh3_64_intdigest(data[start : start + size], chain)
        hashes.append(chain)
    return hashes


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[i : i + BYTES_PER_TOKEN] for i in range(0, len(data), BYTES_PER_TOKEN))
