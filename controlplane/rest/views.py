"""The base of every viewset: reads go through selectors, writes through services, in one way."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from django.db import models, transaction
from rest_framework import mixins, viewsets
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.audit import services as audit
from controlplane.audit.services import Actor
from controlplane.domain.errors import Invalid, NotFound
from controlplane.rest.serializers import ChangeInput, VersionedInput

REVISION_HEADER = "x-signalbox-revision"
_ETAG = re.compile(r'^(?:W/)?"?(\d{1,9})"?$')
_YES_NO = {"true": True, "1": True, "false": False, "0": False}


class Shell(Protocol):
    """What the layer above lends to every write."""

    def once(self, request: Request, run: Callable[[], Response]) -> Response:
        """Run a write, or give the answer it got before under the same idempotency key."""
        ...

    def observed(self, revision: int) -> dict[str, Any]:
        """Say how many agents run a table that covers `revision`."""
        ...


_shell: list[Shell] = []


def install(shell: Shell) -> None:
    """Set the shell of this process; called once, at start."""
    _shell[:] = [shell]


class ServiceViewSet(viewsets.GenericViewSet):
    """Reads and writes of one noun.

    `required_roles` names the role of an action; a read needs a viewer, any other write
    `required_role`. `tenant_roles` opens actions to members of tenants, within `callers_tenants`.
    The default permission class obeys all of them.
    """

    required_role: ClassVar[str] = "operator"
    required_roles: ClassVar[Mapping[str, str]] = {}
    tenant_roles: ClassVar[Mapping[str, str]] = {}
    # Set by the permission class; until then nobody sees anything. None: all, for staff.
    callers_tenants: frozenset[str] | None = frozenset()
    reason: str = ""
    body_version: int | None = None

    def read(self, kind: type[ChangeInput], *, partial: bool = False) -> dict[str, Any]:
        """Give the validated body; its reason and version are kept for the service."""
        given = kind(data=self.request.data, partial=partial)
        given.is_valid(raise_exception=True)
        fields = dict(given.validated_data)
        self.reason = fields.pop("reason", "")
        if issubclass(kind, VersionedInput):
            self.body_version = fields.pop("version", None)
        return fields

    def read_removal(self) -> None:
        """Take a removal's reason from the body or from `?reason=`."""
        if self.request.data:
            self.read(VersionedInput)
        self.reason = self.reason or self.request.query_params.get("reason", "")[:500]

    def own(self, rows: models.QuerySet[Any], path: str) -> models.QuerySet[Any]:
        """Keep what the caller may see; `path` leads from a row to its tenant's slug."""
        if self.callers_tenants is None:
            return rows
        return rows.filter(**{f"{path}__in": self.callers_tenants})

    def check_tenant(self, slug: str) -> None:
        """Refuse a write for a tenant that is not the caller's, as if it were not."""
        if self.callers_tenants is not None and slug not in self.callers_tenants:
            raise NotFound(f"There is no tenant '{slug}'.", field="tenant")

    @property
    def actor(self) -> Actor:
        """Say who is asking: an API token, or a console user."""
        if self.request.auth is not None:
            return Actor(name=self.request.user.get_username(), kind="token")
        return Actor(name=self.request.user.get_username(), kind="user")

    @property
    def expected_version(self) -> int | None:
        """Give the version the caller saw, by `If-Match` or in the body; None when not said."""
        header = self.request.headers.get("If-Match", "*").strip()
        if header == "*":
            return self.body_version
        match = _ETAG.match(header)
        if match is None:
            raise Invalid('If-Match is a version in quotes, for example "7".', field="If-Match")
        return int(match[1])

    @property
    def is_dry_run(self) -> bool:
        """Say whether the caller only wants to see what would be."""
        said = self.request.query_params.get("dry_run", "false").lower()
        if said not in _YES_NO:
            raise Invalid("dry_run is true or false.", field="dry_run")
        return _YES_NO[said]

    def filter_queryset(self, queryset: models.QuerySet[Any]) -> models.QuerySet[Any]:
        """Filter rows and give them a fixed order, without which pages would overlap.

        Counting what belongs to a row drops the order its model declares.
        """
        rows = super().filter_queryset(queryset)
        return rows if rows.ordered else rows.order_by(*rows.model._meta.ordering, "pk")

    def show(self, made: Any) -> dict[str, Any]:
        """Give what a service made in the form in which reads show it."""
        if not isinstance(made, models.Model):
            return {}
        row = self.get_queryset().get(pk=made.pk)
        return dict(self.get_serializer(row).data)

    def carry_out(
        self,
        service: Callable[..., Any],
        *,
        status: int = 200,
        show: Callable[[Any], dict[str, Any]] | None = None,
    ) -> Response:
        """Run a service for the caller and answer with the thing and what became of the change.

        A dry run does the same in a transaction that is rolled back.
        """

        def run() -> Response:
            dry_run = self.is_dry_run
            with transaction.atomic(), audit.collecting() as events:
                made = service(actor=self.actor, reason=self.reason)
                body = (show or self.show)(made)
                if dry_run:
                    transaction.set_rollback(True)
            return _answer(body, events, dry_run=dry_run, status=status)

        return run() if self.is_dry_run else _shell[0].once(self.request, run)

    def carry_out_now(
        self, service: Callable[..., Any], *, show: Callable[[Any], dict[str, Any]]
    ) -> Response:
        """Run a service that talks to agents or publishes, in transactions of its own.

        There is no dry run of it, and repeating it is harmless, so no answer is kept either.
        """
        if self.is_dry_run:
            raise Invalid("This cannot be tried without doing it.", field="dry_run")
        with audit.collecting() as events:
            body = show(service(actor=self.actor, reason=self.reason))
        return _answer(body, events, dry_run=False, status=200)


class ReadMixin(mixins.RetrieveModelMixin, mixins.ListModelMixin):
    """List and detail; a detail carries its version as ETag, for `If-Match`."""

    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Give one thing."""
        response = super().retrieve(request, *args, **kwargs)
        version = response.data.get("version")
        if isinstance(version, int):
            response["ETag"] = f'"{version}"'
        return response


def _answer(body: dict[str, Any], events: list[Any], *, dry_run: bool, status: int) -> Response:
    for name in ("plaintext", "invitation"):
        if dry_run and name in body:
            body[name] = None  # the secret was never stored and opens nothing
    revision = next((e.fleet_revision for e in reversed(events) if e.fleet_revision), None)
    body["change"] = {
        "audit_event": events[-1].pk if events and not dry_run else None,
        "fleet_revision": None if dry_run else revision,
        "observed": _shell[0].observed(revision) if revision and not dry_run else None,
        "dry_run": dry_run,
    }
    if dry_run:
        return Response(body, status=200)
    response = Response(None if status == 204 else body, status=status)
    if revision:
        response[REVISION_HEADER] = str(revision)
    if isinstance(body.get("version"), int):
        response["ETag"] = f'"{body["version"]}"'
    return response
