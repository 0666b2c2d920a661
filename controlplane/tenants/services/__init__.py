"""Changes to who may use what, each one transaction with its audit event."""

from controlplane.tenants.services.api_keys import IssuedKey, issue_key, revoke_key
from controlplane.tenants.services.leases import lease_limits
from controlplane.tenants.services.staff import (
    book_token_use,
    issue_staff_token,
    remove_role,
    revoke_staff_token,
    set_role,
)
from controlplane.tenants.services.tenants import create_tenant, delete_tenant, update_tenant

__all__ = [
    "IssuedKey",
    "book_token_use",
    "create_tenant",
    "delete_tenant",
    "issue_key",
    "issue_staff_token",
    "lease_limits",
    "remove_role",
    "revoke_key",
    "revoke_staff_token",
    "set_role",
    "update_tenant",
]
