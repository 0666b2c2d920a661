"""What every page's frame needs: menu, role, preferences, notices."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from controlplane.console import nav, preferences
from controlplane.console.mixins import includes


def console(request: HttpRequest) -> dict[str, Any]:
    """Give the frame's variables."""
    role = str(getattr(request, "role", ""))
    return {
        "menu": [entry for entry in nav.MENU if includes(role, entry.role)],
        "role": role,
        "may_operate": includes(role, "operator"),
        "may_admin": includes(role, "admin"),
        "preferences": preferences.read(request),
        "windows": preferences.WINDOWS,
    }
