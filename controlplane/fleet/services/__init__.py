"""Changes to the fleet, each one transaction with its audit event."""

from controlplane.fleet.services.adapters import reconcile_adapters
from controlplane.fleet.services.moves import (
    drain_replica,
    eject_replica,
    move_replica,
    restore_replica,
)
from controlplane.fleet.services.nodes import (
    create_node,
    delete_node,
    issue_registration_token,
    update_node,
)
from controlplane.fleet.services.pools import create_pool, delete_pool, set_splits, update_pool
from controlplane.fleet.services.replicas import (
    create_run_replica,
    delete_replica,
    promote_spare,
    register_replica,
    update_replica,
)
from controlplane.fleet.services.shadows import remove_shadow, set_shadow
from controlplane.fleet.services.splits import shift_weights

__all__ = [
    "create_node",
    "create_pool",
    "create_run_replica",
    "delete_node",
    "delete_pool",
    "delete_replica",
    "drain_replica",
    "eject_replica",
    "issue_registration_token",
    "move_replica",
    "promote_spare",
    "reconcile_adapters",
    "register_replica",
    "remove_shadow",
    "restore_replica",
    "set_shadow",
    "set_splits",
    "shift_weights",
    "update_node",
    "update_pool",
    "update_replica",
]
