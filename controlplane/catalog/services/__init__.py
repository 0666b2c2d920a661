"""Changes to the catalogue, each one transaction with its audit event."""

from controlplane.catalog.services.adapters import (
    Received,
    Wanted,
    activate_version,
    add_version,
    book_adapter_use,
    delete_adapter,
    forget_version,
    received,
    update_adapter,
)
from controlplane.catalog.services.models import create_model, delete_model, update_model
from controlplane.catalog.services.versions import create_version, retire_version

__all__ = [
    "Received",
    "Wanted",
    "activate_version",
    "add_version",
    "book_adapter_use",
    "create_model",
    "create_version",
    "delete_adapter",
    "delete_model",
    "forget_version",
    "received",
    "retire_version",
    "update_adapter",
    "update_model",
]
