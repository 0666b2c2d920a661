"""REST: staff roles and staff tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.domain.errors import NotFound
from controlplane.rest.serializers import ChangeInput, ReadOnlySerializer, changed
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.tenants import selectors, services
from controlplane.tenants.api_invitations import InvitationField
from controlplane.tenants.models import Role, StaffProfile, StaffToken


class StaffSerializer(ReadOnlySerializer):
    """A console user's role."""

    username = serializers.CharField(source="user.username")
    is_active = serializers.BooleanField(source="user.is_active")

    class Meta:
        model = StaffProfile
        fields = ["username", "role", "is_active"]


class InvitedStaffSerializer(StaffSerializer):
    """A role that was given; `invitation` is shown this once."""

    invitation = InvitationField()

    class Meta(StaffSerializer.Meta):
        fields = [*StaffSerializer.Meta.fields, "invitation"]


class RoleChange(ChangeInput):
    """Another role."""

    role = serializers.ChoiceField(choices=Role.choices)


class StaffInput(RoleChange):
    """Who gets a role; who has no account gets one."""

    username = serializers.CharField(max_length=150)


class StaffViewSet(ReadMixin, ServiceViewSet):
    """Staff roles: viewer, operator, admin."""

    required_role = "admin"
    lookup_field = "user__username"
    lookup_url_kwarg = "username"
    lookup_value_regex = "[^/]+"
    queryset = StaffProfile.objects.none()
    serializer_class = StaffSerializer

    def get_queryset(self) -> QuerySet[StaffProfile]:
        """Give every user with a role."""
        return selectors.staff()

    @extend_schema(request=StaffInput, responses={201: changed(InvitedStaffSerializer)})
    def create(self, request: Request) -> Response:
        """Give somebody a role; the answer shows a new user's invitation this once."""
        given = self.read(StaffInput)
        return self.carry_out(
            partial(services.invite_staff, **given), status=201, show=self._invited
        )

    @extend_schema(request=ChangeInput, responses=changed(InvitedStaffSerializer))
    @action(detail=True, methods=["post"], url_path="renew-invitation")
    def renew_invitation(self, request: Request, username: str) -> Response:
        """Take a user's password away and invite them anew."""
        self.read(ChangeInput)
        return self.carry_out(
            partial(services.renew_staff_invitation, user=_user(username)), show=self._invited
        )

    @extend_schema(request=RoleChange, responses=changed(StaffSerializer))
    def partial_update(self, request: Request, username: str) -> Response:
        """Give a user another role."""
        role = self.read(RoleChange)["role"]
        return self.carry_out(partial(services.set_role, user=_user(username), role=role))

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, username: str) -> Response:
        """Take a user's role away."""
        self.read_removal()
        return self.carry_out(partial(services.remove_role, user=_user(username)), status=204)

    def _invited(self, invitation: services.Invitation[StaffProfile]) -> dict[str, Any]:
        return {**self.show(invitation.given), "invitation": invitation.path}


class StaffTokenSerializer(ReadOnlySerializer):
    """A token for automation, without its text."""

    class Meta:
        model = StaffToken
        fields = ["name", "role", "created_at", "expires_at", "last_used_at"]


class IssuedStaffTokenSerializer(StaffTokenSerializer):
    """A new token with its text, shown this once; null in a dry run and in a repeated answer."""

    plaintext = serializers.CharField(allow_null=True)

    class Meta(StaffTokenSerializer.Meta):
        fields = [*StaffTokenSerializer.Meta.fields, "plaintext"]


class StaffTokenInput(ChangeInput):
    """A new token."""

    name = serializers.CharField(max_length=63)
    role = serializers.ChoiceField(choices=Role.choices)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class StaffTokenViewSet(ReadMixin, ServiceViewSet):
    """Tokens by which automation calls this API; only admins see and issue them."""

    required_role = "admin"
    required_roles = {"list": "admin", "retrieve": "admin"}
    lookup_field = "name"
    queryset = StaffToken.objects.order_by("name")
    serializer_class = StaffTokenSerializer

    @extend_schema(request=StaffTokenInput, responses={201: changed(IssuedStaffTokenSerializer)})
    def create(self, request: Request) -> Response:
        """Issue a token; the answer shows its text this once."""
        given = self.read(StaffTokenInput)
        return self.carry_out(
            partial(services.issue_staff_token, **given), status=201, show=self._issued
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """End a token at once."""
        self.read_removal()
        return self.carry_out(partial(services.revoke_staff_token, name=name), status=204)

    def _issued(self, issued: tuple[StaffToken, str]) -> dict[str, Any]:
        return {**self.show(issued[0]), "plaintext": issued[1]}


def _user(username: str) -> User:
    user = get_user_model().objects.filter(username=username).first()
    if user is None:
        raise NotFound(f"There is no console user '{username}'.", field="username")
    return user
