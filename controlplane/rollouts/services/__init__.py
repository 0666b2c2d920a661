"""What rollouts do: start, move on, pause, promote, abort, roll back; and the loop over them."""

from controlplane.rollouts.services.evaluation import evaluate_all
from controlplane.rollouts.services.moves import (
    abort_rollout,
    pause_rollout,
    promote_rollout,
    resume_rollout,
)
from controlplane.rollouts.services.pairs import book_pairs, forget_pairs, review_pair
from controlplane.rollouts.services.starting import roll_back, start_rollout

__all__ = [
    "abort_rollout",
    "book_pairs",
    "evaluate_all",
    "forget_pairs",
    "pause_rollout",
    "promote_rollout",
    "resume_rollout",
    "review_pair",
    "roll_back",
    "start_rollout",
]
