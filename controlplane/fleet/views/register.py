"""A new pool, and an engine taken into one: the console's way to start a fleet."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from controlplane.audit.asking import Asking
from controlplane.fleet import selectors, services
from controlplane.fleet.forms_register import NewPoolForm, NewReplicaForm


class RegisterPool(Asking):
    """Create a pool of one model version."""

    nav_name = "pools"
    title = "New pool"
    explained = (
        "A pool is replicas that serve one model version under one policy. A model's first pool"
        " gets all its requests; a further one gets none until its weight (“Traffic” on its page)"
        " or a rollout gives it some."
    )
    button = "Create pool"
    made = ""

    def form(self, data: Any, **address: Any) -> NewPoolForm:
        """Give the form."""
        return NewPoolForm(data)

    def change(self, form: NewPoolForm, who: dict[str, Any], **address: Any) -> str:
        """Create it."""
        given = form.cleaned_data
        version = given["version"]
        services.create_pool(
            slug=given["slug"],
            model=version.model.name,
            version=version.name,
            overload_policy=given["overload_policy"],
            owner=given["owner"],
            description=given["description"],
            **who,
        )
        self.made = given["slug"]
        return f"Pool {self.made} created. Next it needs a replica."

    def back(self, **address: Any) -> str:
        """Go to the new pool, or back to all."""
        return reverse("pool", args=[self.made]) if self.made else reverse("pools")


class RegisterReplica(Asking):
    """Take an engine that somebody else runs into a pool."""

    nav_name = "pools"
    title = "Add a replica"
    explained = (
        "Agents probe the engine, ask it for a first completion, and send it traffic once it"
        " answers. Its page says how far that is."
    )
    button = "Add replica"
    made = ""

    def form(self, data: Any, **address: Any) -> NewReplicaForm:
        """Give the form, for the pool the reader comes from."""
        return NewReplicaForm(data, initial={"pool": self.request.GET.get("pool", "")})

    def change(self, form: NewReplicaForm, who: dict[str, Any], **address: Any) -> str:
        """Register it."""
        given = form.cleaned_data
        node = given["node"]
        replica = services.register_replica(
            pool=given["pool"].slug,
            url=given["url"],
            engine=given["engine"],
            node=node.name if node else None,
            served_model=given["served_model"],
            **who,
        )
        self.made = replica.public_id
        return f"Replica {self.made} registered."

    def back(self, **address: Any) -> str:
        """Go to the new replica, or back to where the reader came from."""
        pool = self.request.GET.get("pool", "")
        if self.made:
            return reverse("replica", args=[self.made])
        return reverse("pool", args=[pool]) if pool in selectors.pool_names() else reverse("pools")
