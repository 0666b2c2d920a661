"""Calling the REST API as somebody with a role, and rows for it to show."""

from __future__ import annotations

from typing import Any

from rest_framework.test import APIClient

from controlplane.catalog import services as catalog
from controlplane.fleet import services as fleet
from controlplane.tenants import services as tenants
from tests.factories import ACTOR, WHY

__all__ = ["ACTOR", "WHY", "bearing", "caller", "model", "ok", "pool", "problem", "replica"]


def caller(role: str = "admin", name: str = "") -> APIClient:
    """Give a client that carries a staff token of `role`."""
    _, text = tenants.issue_staff_token(name=name or f"ci-{role}", role=role, **WHY)
    return bearing(text)


def bearing(token: str) -> APIClient:
    """Give a client that carries this token, whatever it is."""
    client = APIClient(raise_request_exception=True)
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    return client


def ok(response: Any, status: int = 200) -> Any:
    """Give the body of an answer that has this status."""
    assert response.status_code == status, (response.status_code, response.content)
    return response.json() if response.content else None


def problem(response: Any, status: int, code: str) -> dict[str, Any]:
    """Give the error of an answer that has this status and code."""
    assert response.status_code == status, (response.status_code, response.content)
    error = response.json()["error"]
    assert error["code"] == code, error
    assert error["message"]
    return error


def model(name: str = "chat", version: str = "v1") -> None:
    """Make a model with one version."""
    catalog.create_model(name=name, **WHY)
    catalog.create_version(model=name, name=version, **WHY)


def pool(slug: str = "chat-a", model_name: str = "chat", version: str = "v1") -> None:
    """Make a pool of a version that exists."""
    fleet.create_pool(slug=slug, model=model_name, version=version, overload_policy="queue", **WHY)


def replica(port: int = 8301, pool_slug: str = "chat-a") -> str:
    """Register a replica and give its id."""
    row = fleet.register_replica(pool=pool_slug, url=f"http://127.0.0.1:{port}", **WHY)
    return row.public_id
