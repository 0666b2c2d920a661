"""What a new control plane needs before anybody can use it: an admin, a signing key, its agents.

Everything here is made only where it is missing, so it may run at each start.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.utils import timezone

from controlplane.audit.services import Actor
from controlplane.fleet import services as fleet
from controlplane.fleet.models import Agent, Node
from controlplane.routing import signing
from controlplane.tenants import services as tenants
from controlplane.tenants.keys import digest
from controlplane.tenants.models import Role

ACTOR = Actor("bootstrap", "command")
ADMIN = "admin"
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPlace:
    """An agent on this machine and its two ports."""

    name: str
    traffic_port: int
    admin_port: int


def secrets_dir() -> Path:
    """Give the folder of generated secrets, for its owner's eyes only."""
    folder = Path(settings.VAR_DIR) / "secrets"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one move."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def ensure_signing_key() -> None:
    """Make the key that signs tables, unless there is one."""
    signing.make_key_file(Path(settings.SIGNING_KEY_FILE))
    signing.private_key()


def ensure_admin() -> Path:
    """Make the first admin and give the file that holds the password."""
    path = secrets_dir() / "admin-password"
    if not path.exists() or not path.read_text().strip():
        write_private(path, secrets.token_urlsafe(15) + "\n")
    users = get_user_model()
    user, is_new = users.objects.get_or_create(
        username=ADMIN, defaults={"is_staff": True, "is_superuser": True}
    )
    if is_new:
        user.set_password(path.read_text().strip())
        user.save()
    if not hasattr(user, "staff_profile"):
        tenants.set_role(user=user, role=Role.ADMIN, actor=ACTOR, reason="first start")
    return path


def ensure_node(name: str, *, zone: str = "", simulated_gpus: int = 0) -> Node:
    """Declare a node unless it is there."""
    node = Node.objects.filter(name=name).first()
    if node is not None:
        return node
    gpus = [
        {
            "index": index,
            "model": "A100-SXM4-80GB",
            "memory_bytes": 80 * GIB,
            "simulated": True,
        }
        for index in range(simulated_gpus)
    ]
    return fleet.create_node(name=name, zone=zone, gpus=gpus, actor=ACTOR, reason="first start")


def ensure_agent(place: AgentPlace) -> dict[str, object]:
    """See to it that an agent on this machine is registered, or has a token to register with."""
    home = Path(settings.VAR_DIR) / "agents" / place.name
    token_file = home / "registration-token"
    agent = Agent.objects.filter(node__name=place.name).first()
    if agent is not None and (home / "identity.json").exists():
        _follow_ports(agent, place)
        return {"name": place.name, "registered": True, "token_file": None}
    if not _is_good_token(token_file, place.name):
        _, plaintext = fleet.issue_registration_token(
            node=place.name, actor=ACTOR, reason="first start"
        )
        write_private(token_file, plaintext + "\n")
    return {"name": place.name, "registered": False, "token_file": str(token_file)}


def _follow_ports(agent: Agent, place: AgentPlace) -> None:
    """Push to where the agent listens now, should this start use other ports than the last."""
    Agent.objects.filter(pk=agent.pk).update(
        traffic_url=f"http://127.0.0.1:{place.traffic_port}",
        admin_url=f"http://127.0.0.1:{place.admin_port}",
    )


def _is_good_token(path: Path, node: str) -> bool:
    """Say whether a file holds a token by which the node's agent can still register."""
    if not path.exists():
        return False
    row = Node.objects.get(name=node).registration_tokens.filter(
        sha256=digest(path.read_text().strip()), used_at=None, expires_at__gt=timezone.now()
    )
    return row.exists()
