"""Changes to who may use what, each one transaction with its audit event."""

from controlplane.tenants.services.accounts import Invitation
from controlplane.tenants.services.api_keys import (
    IssuedKey,
    KeptKey,
    book_key_use,
    issue_key,
    restore_key,
    revoke_key,
    rotate_key,
)
from controlplane.tenants.services.leases import lease_limits
from controlplane.tenants.services.members import (
    invite_member,
    remove_member,
    renew_invitation,
    set_member_role,
)
from controlplane.tenants.services.staff import (
    book_token_use,
    invite_staff,
    issue_staff_token,
    remove_role,
    renew_staff_invitation,
    revoke_staff_token,
    set_role,
)
from controlplane.tenants.services.tenants import create_tenant, delete_tenant, update_tenant
from controlplane.tenants.services.tokens import (
    book_tenant_token_use,
    issue_tenant_token,
    revoke_tenant_token,
)

__all__ = [
    "Invitation",
    "IssuedKey",
    "KeptKey",
    "book_key_use",
    "book_tenant_token_use",
    "book_token_use",
    "create_tenant",
    "delete_tenant",
    "invite_member",
    "invite_staff",
    "issue_key",
    "issue_staff_token",
    "issue_tenant_token",
    "lease_limits",
    "remove_member",
    "remove_role",
    "renew_invitation",
    "renew_staff_invitation",
    "restore_key",
    "revoke_key",
    "revoke_staff_token",
    "revoke_tenant_token",
    "rotate_key",
    "set_member_role",
    "set_role",
    "update_tenant",
]
