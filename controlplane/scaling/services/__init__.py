"""What scaling does: policies and overrides of people, the loop's decisions, engines' processes."""

from controlplane.scaling.services.deciding import decide_all, decide_pool
from controlplane.scaling.services.executing import execute_all
from controlplane.scaling.services.keeping import forget_before
from controlplane.scaling.services.policies import (
    delete_policy,
    end_override,
    set_override,
    set_policy,
)

__all__ = [
    "decide_all",
    "decide_pool",
    "delete_policy",
    "end_override",
    "execute_all",
    "forget_before",
    "set_override",
    "set_policy",
]
