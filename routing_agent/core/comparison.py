"""Two answers to one request: the same, or from where on they differ."""

from __future__ import annotations


def first_difference(a: str, b: str) -> int | None:
    """Give how many characters two texts begin with alike; `None` if they are the same."""
    if a == b:
        return None
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is quicker than comparing characters
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
