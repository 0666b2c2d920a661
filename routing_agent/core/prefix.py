"""The chain of a prompt's blocks: what tells whether two prompts begin alike, and for how long.

Each block's hash is seeded by the hash of the block before it, and the first one by whatever keeps
engines from sharing a cache: model version, adapter and `cache_salt`. So one hash stands for the
whole prompt up to there, and two chains are equal exactly as far as their prompts are.
"""

from __future__ import annotations

from typing import Final

import xxhash

# Of a longer prompt only the beginning is looked at: 2 MiB at 256 bytes a block, some 500,000
# tokens. What lies behind it is computed by whichever replica holds so much.
MAX_BLOCKS: Final = 8192
# What stands before each message of a canonical prompt and before each part of one. Neither occurs
# in JSON outside of strings, nor, unescaped, inside of one.
PART: Final = b"\x00"
INSIDE: Final = b"\x01"


def chain_root(seed: int, version: str, adapter: str = "", salt: bytes = b"") -> int:
    """Give what a chain starts from; prompts of different roots share nothing.

    `seed` is the table's, the same on all agents. `salt` is the request's `cache_salt` as it was
    spelled; engines that know of salts compute nothing for one that serves another.
    """
    return xxhash.xxh3_64_intdigest(
        b"%b\x00%b\x00%b" % (version.encode(), adapter.encode(), salt), seed
    )


def user_turn(text: str) -> bytes:
    """Give the canonical prompt of a conversation that begins with this text of a user."""
    return b"%buser%b%b" % (PART, INSIDE, text.encode())


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
