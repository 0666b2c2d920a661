"""How long nothing changes: closed forms for the number of equal steps that a plan can repeat.

A plan is what one step does: sequences, each with the tokens it computes. It repeats until a
sequence ends, a prompt is through, blocks run short, or one that waits could come in after all.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Final

from routing_agent.simulation.sequences import Sequence, blocks_for

Plan = Ordered[tuple[Sequence, int]]
_NEVER: Final = 1 << 60


def equal_steps(plan: Plan) -> int:
    """Count the steps until one of the plan's sequences ends or takes another share."""
    return min(sequence.equal_steps(tokens) for sequence, tokens in plan)


def steps_until_help(plan: Plan, blocked: Sequence, place: int, block_tokens: int) -> int:
    """Count the steps until the plan computes block number `place` of one that finds no room.

    That block is the first it misses: once it is shared, one block less may be room enough.
    """
    hashes = blocked.request.block_hashes
    if place >= min(len(hashes), (blocked.known_tokens - 1) // block_tokens):
        return _NEVER
    return min(
        blocks_for((place + 1) * block_tokens - sequence.computed, tokens)
        if _will_compute(sequence, place, hashes[place])
        else _NEVER
        for sequence, tokens in plan
    )


def _will_compute(sequence: Sequence, place: int, block: int) -> bool:
    hashes = sequence.request.block_hashes
    return sequence.published <= place < len(hashes) and hashes[place] == block


def steps_with_room(plan: Plan, steps: int, room: int, block_tokens: int) -> int:
    """Shorten a run so that the blocks it grows into fit `room`; its first step has its blocks."""
    if _growth(plan, steps, block_tokens) <= room:
        return steps
    enough, too_many = 1, steps
    while too_many - enough > 1:
        middle = (enough + too_many) // 2
        if _growth(plan, middle, block_tokens) <= room:
            enough = middle
        else:
            too_many = middle
    return enough


def _growth(plan: Plan, steps: int, block_tokens: int) -> int:
    return sum(
        max(0, blocks_for(sequence.computed + tokens * steps, block_tokens) - sequence.blocks)
        for sequence, tokens in plan
    )
