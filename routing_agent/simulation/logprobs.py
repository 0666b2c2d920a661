"""Log-probabilities that a simulated engine gives to its tokens: invented, and always the same."""

from __future__ import annotations

from typing import Any

import xxhash

_STEP = 1.25  # how much less likely each alternative is


def logprob(token: str, position: int) -> float:
    """Give a token's log-probability at its place in the answer: 0 to -2."""
    return -(xxhash.xxh3_64_intdigest(token.encode(), position) % 2000) / 1000


def of_chat(pieces: list[str], first: int, top: int) -> dict[str, Any]:
    """Give the `logprobs` of a chat's tokens from number `first` on, with `top` alternatives."""
    content = []
    for position, token in enumerate(pieces, first):
        ranked = _ranked(token, position, max(top, 1))
        entries = [
            {"token": text, "logprob": value, "bytes": list(text.encode())}
            for text, value in ranked
        ]
        content.append(entries[0] | {"top_logprobs": entries[:top]})
    return {"content": content}


def of_completion(pieces: list[str], first: int, offset: int, top: int) -> dict[str, Any]:
    """Give the `logprobs` of a completion's tokens; `offset` is the length of the text before."""
    offsets, values, best = [], [], []
    for position, token in enumerate(pieces, first):
        ranked = _ranked(token, position, max(top, 1))
        offsets.append(offset)
        values.append(ranked[0][1])
        best.append(dict(ranked))
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": values,
        "tokens": list(pieces),
        "top_logprobs": best,
    }


def _ranked(token: str, position: int, count: int) -> list[tuple[str, float]]:
    own = logprob(token, position)
    others = [(f"{token}{mark}", own - _STEP * mark) for mark in range(1, count)]
    return [(token, own), *others]
