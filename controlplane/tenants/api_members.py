"""REST: who belongs to which tenant, and the tokens of tenants' automation."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.rest.serializers import ChangeInput, ReadOnlySerializer, changed
from controlplane.rest.views import ReadMixin, ServiceViewSet
from controlplane.tenants import selectors, services
from controlplane.tenants.api_invitations import InvitationField
from controlplane.tenants.models import Membership, TenantRole, TenantToken
from controlplane.tenants.services import Invitation

MEMBER, ADMIN = TenantRole.MEMBER.value, TenantRole.ADMIN.value


class MembershipSerializer(ReadOnlySerializer):
    """Somebody who belongs to a tenant."""

    tenant = serializers.CharField(source="tenant.slug")
    username = serializers.CharField(source="user.username")

    class Meta:
        model = Membership
        fields = ["id", "tenant", "username", "role", "created_at"]


class InvitedMembershipSerializer(MembershipSerializer):
    """A new member; `invitation` is shown this once."""

    invitation = InvitationField()

    class Meta(MembershipSerializer.Meta):
        fields = [*MembershipSerializer.Meta.fields, "invitation"]


class MemberRoleChange(ChangeInput):
    """Another role."""

    role = serializers.ChoiceField(choices=TenantRole.choices)


class MembershipInput(MemberRoleChange):
    """Who belongs to what; who has no account gets one."""

    tenant = serializers.CharField(max_length=63)
    username = serializers.CharField(max_length=150)


class MembershipFilter(django_filters.FilterSet):
    """Which memberships."""

    tenant = django_filters.CharFilter("tenant__slug")
    username = django_filters.CharFilter("user__username")

    class Meta:
        model = Membership
        fields = ["role"]


class MembershipViewSet(ReadMixin, ServiceViewSet):
    """Members of tenants: they sign in and see their tenant's own area."""

    required_role = "admin"
    tenant_roles: ClassVar[dict[str, str]] = {"list": MEMBER, "retrieve": MEMBER}
    lookup_url_kwarg = "id"
    queryset = Membership.objects.none()
    serializer_class = MembershipSerializer
    filterset_class = MembershipFilter

    def get_queryset(self) -> QuerySet[Membership]:
        """Give all memberships, or those of the caller's tenants."""
        return self.own(selectors.memberships(), "tenant__slug")

    @extend_schema(request=MembershipInput, responses={201: changed(InvitedMembershipSerializer)})
    def create(self, request: Request) -> Response:
        """Make somebody a member; the answer shows their invitation this once."""
        given = self.read(MembershipInput)
        return self.carry_out(
            partial(services.invite_member, **given), status=201, show=self._invited
        )

    @extend_schema(request=ChangeInput, responses=changed(InvitedMembershipSerializer))
    @action(detail=True, methods=["post"], url_path="renew-invitation")
    def renew_invitation(self, request: Request, id: str) -> Response:
        """Take a member's password away and invite them anew."""
        self.read(ChangeInput)
        member = self.get_object().pk
        return self.carry_out(
            partial(services.renew_invitation, membership_id=member), show=self._invited
        )

    @extend_schema(request=MemberRoleChange, responses=changed(MembershipSerializer))
    def partial_update(self, request: Request, id: str) -> Response:
        """Give a member another role."""
        role = self.read(MemberRoleChange)["role"]
        member = self.get_object().pk
        return self.carry_out(partial(services.set_member_role, membership_id=member, role=role))

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Take somebody out of a tenant; their account stays."""
        self.read_removal()
        member = self.get_object().pk
        return self.carry_out(partial(services.remove_member, membership_id=member), status=204)

    def _invited(self, invitation: Invitation[Membership]) -> dict[str, Any]:
        return {**self.show(invitation.given), "invitation": invitation.path}


class TenantTokenSerializer(ReadOnlySerializer):
    """A token of a tenant's automation, without its text."""

    tenant = serializers.CharField(source="tenant.slug")

    class Meta:
        model = TenantToken
        fields = [
            "id",
            "tenant",
            "name",
            "role",
            "created_at",
            "created_by",
            "expires_at",
            "last_used_at",
        ]


class IssuedTenantTokenSerializer(TenantTokenSerializer):
    """A new token with its text, shown this once; null in a dry run and in a repeated answer."""

    plaintext = serializers.CharField(allow_null=True)

    class Meta(TenantTokenSerializer.Meta):
        fields = [*TenantTokenSerializer.Meta.fields, "plaintext"]


class TenantTokenInput(ChangeInput):
    """A new token."""

    tenant = serializers.CharField(max_length=63)
    name = serializers.CharField(max_length=63)
    role = serializers.ChoiceField(choices=TenantRole.choices, required=False)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class TenantTokenFilter(django_filters.FilterSet):
    """Which tokens."""

    tenant = django_filters.CharFilter("tenant__slug")

    class Meta:
        model = TenantToken
        fields = ["name", "role"]


class TenantTokenViewSet(ReadMixin, ServiceViewSet):
    """Tokens by which a tenant's automation calls this API, within that tenant only."""

    required_role = "admin"
    required_roles: ClassVar[dict[str, str]] = {"list": "admin", "retrieve": "admin"}
    tenant_roles: ClassVar[dict[str, str]] = dict.fromkeys(
        ("list", "retrieve", "create", "destroy"), ADMIN
    )
    lookup_url_kwarg = "id"
    queryset = TenantToken.objects.none()
    serializer_class = TenantTokenSerializer
    filterset_class = TenantTokenFilter

    def get_queryset(self) -> QuerySet[TenantToken]:
        """Give all tokens, or those of the tenants the caller administers."""
        return self.own(selectors.tenant_tokens(), "tenant__slug")

    @extend_schema(request=TenantTokenInput, responses={201: changed(IssuedTenantTokenSerializer)})
    def create(self, request: Request) -> Response:
        """Issue a token; the answer shows its text this once."""
        given = self.read(TenantTokenInput)
        self.check_tenant(given["tenant"])
        return self.carry_out(
            partial(services.issue_tenant_token, **given), status=201, show=self._issued
        )

    @extend_schema(request=None, responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """End a token at once."""
        self.read_removal()
        token = self.get_object().pk
        return self.carry_out(partial(services.revoke_tenant_token, token_id=token), status=204)

    def _issued(self, issued: tuple[TenantToken, str]) -> dict[str, Any]:
        return {**self.show(issued[0]), "plaintext": issued[1]}
