"""Addresses of the tenants' pages, of their own areas, and of signing in."""

from django.contrib.auth.views import LogoutView
from django.urls import path

from controlplane.tenants.views import (
    area,
    keys,
    limits,
    members,
    pages,
    signing_in,
    staff,
    staff_tokens,
)

urlpatterns = [
    path("login/", signing_in.SignIn.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("welcome/<uidb64>/<token>/", signing_in.Welcome.as_view(), name="welcome"),
    path("tenants/", pages.TenantList.as_view(), name="tenants"),
    path("tenants/new/", limits.CreateTenant.as_view(), name="tenant-new"),
    path("tenants/<slug:slug>/", pages.TenantPage.as_view(), name="tenant"),
    path("tenants/<slug:slug>/edit/", limits.EditTenant.as_view(), name="tenant-edit"),
    path("tenants/<slug:slug>/keys/new/", keys.IssueKey.as_view(), name="issue-key"),
    path("tenants/<slug:slug>/members/new/", members.InviteMember.as_view(), name="member-new"),
    path("staff/", staff.StaffPage.as_view(), name="staff"),
    path("staff/new/", staff.InviteStaff.as_view(), name="staff-new"),
    path("staff/tokens/new/", staff_tokens.IssueStaffToken.as_view(), name="staff-token-new"),
    path(
        "staff/tokens/<slug:name>/revoke/",
        staff_tokens.RevokeStaffToken.as_view(),
        name="staff-token-revoke",
    ),
    path("staff/<str:username>/change/", staff.ChangeStaff.as_view(), name="staff-change"),
    path("members/<int:pk>/", members.ChangeMember.as_view(), name="member"),
    path("keys/<slug:public_id>/revoke/", keys.RevokeKey.as_view(), name="revoke-key"),
    path("keys/<slug:public_id>/rotate/", keys.RotateKey.as_view(), name="rotate-key"),
    path("t/", area.AreaHome.as_view(), name="area-home"),
    path("t/<slug:slug>/keys/", keys.AreaKeys.as_view(), name="area-keys"),
    path("t/<slug:slug>/keys/new/", keys.AreaIssueKey.as_view(), name="area-key-new"),
    path(
        "t/<slug:slug>/keys/<slug:public_id>/rotate/",
        keys.AreaRotateKey.as_view(),
        name="area-key-rotate",
    ),
    path(
        "t/<slug:slug>/keys/<slug:public_id>/revoke/",
        keys.AreaRevokeKey.as_view(),
        name="area-key-revoke",
    ),
    path("t/<slug:slug>/limits/", limits.AreaLimits.as_view(), name="area-limits"),
    path("t/<slug:slug>/members/", members.AreaMembers.as_view(), name="area-members"),
]
