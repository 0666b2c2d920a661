"""The chain of a prompt's blocks: what tells whether two prompts begin alike, and for how long.

Each block's hash is seeded by the hash of the block before it, and the first one by whatever keeps
engines from sharing a cache: model version, adapter and `cache_salt`. So one hash stands for the
whole prompt up to there, and two chains are equal exactly as far as their prompts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import xxhash

# Of a longer prompt only the beginning is looked at: 2 MiB at 256 bytes a block, some 500,000
# tokens. What lies behind it is computed by whichever replica holds so much.
MAX_BLOCKS: Final = 8192
# What stands before each message of a canonical prompt and before each part of one. Neither occurs
# in JSON outside of strings, nor, unescaped, inside of one.
PART: Final = b"\x00"
INSIDE: Final = b"\x01"
# A fingerprint needs no more of a prompt than tells conversations apart.
FINGERPRINT_BYTES: Final = 4096


def chain_root(seed: int, version: str, adapter: str = "", salt: bytes = b"") -> int:
    """Give what a chain starts from; prompts of different roots share nothing.

    `seed` is the table's, the same on all agents. `salt` is the request's `cache_salt` as it was
    spelled; engines that know of salts compute nothing for one that serves another.
    """
    return xxhash.xxh3_64_intdigest(
        b"%b\x00%b\x00%b" % (version.encode(), adapter.encode(), salt), seed
    )


def conversation(turns: Sequence[tuple[str, str]]) -> bytes:
    """Give the canonical prompt of a conversation of texts, each with its role before it."""
    return b"".join(
        b"%b%b%b%b" % (PART, role.encode(), INSIDE, text.encode()) for role, text in turns
    )


def told_apart(text: str) -> bytes:
    """Give enough of a text to tell it from others: all of a short one, both ends of a long one."""
    if len(text) > 2 * FINGERPRINT_BYTES:
        text = text[:FINGERPRINT_BYTES] + text[-FINGERPRINT_BYTES:]
    return text.encode()


def beginning(turns: Sequence[tuple[str, str]]) -> bytes:
    """Give what a session without a key is known by: all up to the first turn of a user."""
    head: list[bytes] = []
    for role, text in turns:
        head.append(told_apart(text))
        if role == "user":
            break
    return b"\x00".join(head)


def chain(prompt: bytes, root: int, block_bytes: int) -> list[int]:
    """Give the chained 64-bit xxh3 hashes of the whole blocks of a canonical prompt.

    The rest behind the last whole block counts for nothing: it would differ in the next turn.
    """
    blocks: list[int] = []
    whole = min(len(prompt) // block_bytes, MAX_BLOCKS) * block_bytes
    digest = xxhash.xxh3_64_intdigest
    before = root
    start = 0
    while start < whole:
        before = digest(prompt[start : start + block_bytes], before)
        blocks.append(before)
        start += block_bytes
    return blocks
