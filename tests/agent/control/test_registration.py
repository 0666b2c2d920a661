"""Registering once with a one-time token, and never needing it again."""

from __future__ import annotations

import asyncio
import random
import stat

import pytest

from routing_agent.control import identity as identity_module
from routing_agent.control.clock import ControlClock
from routing_agent.control.identity import (
    IdentityFile,
    Registrar,
    RegistrationRefused,
    error_text,
)
from routing_agent.http_client import HttpClient
from routing_agent.wire import RegisterRequest
from tests.agent.waiting import until
from tests.fakes.control_plane import REGISTER, FakeControlPlane


@pytest.fixture
async def control_plane():
    control_plane = await FakeControlPlane(tokens={"once", "second"}).start()
    yield control_plane
    await control_plane.stop()


@pytest.fixture
async def registrar(control_plane, tmp_path):
    client = HttpClient()
    yield Registrar(
        control_plane=control_plane.url,
        client=client,
        clock=ControlClock(),
        file=IdentityFile(tmp_path / "identity.json"),
        chance=random.Random(1),
    )
    await client.close()


async def identify(registrar, request, *, adopt=False):
    """Do what a start does."""
    return registrar.kept(request.token, adopt=adopt) or await registrar.register(request)


def asking(token: str = "once") -> RegisterRequest:
    return RegisterRequest(
        token=token, name="node-a", traffic_url="http://a:1", admin_url="http://a:2"
    )


async def test_a_token_becomes_an_identity_for_the_owner_only(registrar, control_plane, tmp_path):
    identity = await identify(registrar, asking())
    assert (identity.agent, identity.lineage) == ("agent-1", "lineage-1")
    assert identity.public_key == control_plane.public_key
    assert stat.S_IMODE((tmp_path / "identity.json").stat().st_mode) == 0o600
    assert registrar.clock.source == "contact"


async def test_a_restarted_agent_needs_neither_token_nor_control_plane(registrar, control_plane):
    identity = await identify(registrar, asking())
    await control_plane.stop()
    assert await identify(registrar, asking(token="")) == identity


@pytest.mark.parametrize("token", ["once", "never-existed"])
async def test_a_used_or_unknown_token_is_refused_with_the_remedy(registrar, control_plane, token):
    control_plane.tokens.discard("once")
    with pytest.raises(RegistrationRefused, match="create a new one in the console"):
        await identify(registrar, asking(token))


async def test_without_token_and_identity_the_message_says_where_to_get_one(registrar):
    with pytest.raises(RegistrationRefused, match="--token-file or SIGNALBOX_TOKEN"):
        await identify(registrar, asking(token=""))


async def test_it_waits_for_a_control_plane_that_is_not_up_yet(
    registrar, control_plane, monkeypatch
):
    monkeypatch.setattr(identity_module, "FIRST_PAUSE_S", 0.01)
    control_plane.status = 503
    registering = asyncio.ensure_future(identify(registrar, asking()))
    await until(lambda: control_plane.calls[REGISTER] >= 2)
    await control_plane.stop()
    control_plane.status = None
    await control_plane.start()
    assert (await registering).agent == "agent-1"


async def test_adopt_registers_again_once_per_token(registrar, control_plane):
    first = await identify(registrar, asking(), adopt=True)
    assert await identify(registrar, asking(), adopt=True) == first
    control_plane.lineage = "lineage-2"
    moved = await identify(registrar, asking("second"), adopt=True)
    assert moved.lineage == "lineage-2"
    assert await identify(registrar, asking("second"), adopt=True) == moved
    assert await identify(registrar, asking(token=""), adopt=True) == moved


async def test_a_new_token_alone_changes_nothing(registrar, control_plane):
    first = await identify(registrar, asking())
    assert await identify(registrar, asking("second")) == first
    assert "second" in control_plane.tokens


async def test_an_unreadable_identity_is_not_thrown_away(registrar, tmp_path):
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(RegistrationRefused, match=r"identity\.json cannot be read"):
        await identify(registrar, asking())
    assert (tmp_path / "identity.json").read_text() == "{"


async def test_an_identity_shows_no_secret(registrar):
    identity = await identify(registrar, asking())
    assert identity.agent_token not in repr(identity)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "Token used"}}', "Token used."),
        (b'{"detail": "Not allowed."}', "Not allowed."),
        (b'{"error": "Unauthorized"}', "Unauthorized."),
        (b'{"message": "no!"}', "no!"),
        (b"<html>", "no reason given."),
        (b"{}", "no reason given."),
    ],
)
def test_the_reason_is_found_in_any_error_body(body, text):
    assert error_text(body) == text
