"""Changes to the catalogue, each one transaction with its audit event: models and versions."""

from controlplane.catalog.services.models import create_model, delete_model, update_model
from controlplane.catalog.services.versions import create_version, retire_version

__all__ = ["create_model", "create_version", "delete_model", "retire_version", "update_model"]
