"""Who this agent is to its control plane: registered once with a one-time token, kept for good."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from routing_agent.control.clock import ControlClock
from routing_agent.control.files import write_durably
from routing_agent.control.signatures import load_public_key
from routing_agent.core.chance import Chance
from routing_agent.http_client import CallFailed, HttpClient, Response
from routing_agent.wire import RegisterReply, RegisterRequest

log = structlog.get_logger()

REGISTER_PATH = "/api/v1/agent/register"
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 5.0
# Statuses that may pass by themselves; every other 4xx is the control plane's last word.
PASSING = frozenset({408, 425, 429})


class RegistrationRefused(Exception):
    """The control plane does not accept this agent; the message says why and what to do."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent keeps from its registration."""

    agent: str
    agent_token: str
    public_key: str
    lineage: str
    report_interval_s: float = 2.0
    token_sha256: str = ""  # of the one-time token it was made with

    def __repr__(self) -> str:
        return f"Identity(agent={self.agent!r}, lineage={self.lineage!r})"


class IdentityFile:
    """The identity on disk, readable by the owner only."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Identity | None:
        """Give the kept identity; None if there is none. An unreadable one is an error to mend."""
        if not self._path.exists():
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Identity)
        except (OSError, msgspec.MsgspecError) as error:
            raise RegistrationRefused(
                f"The identity file {self._path} cannot be read ({error}). Restore it, or remove "
                "it and register this agent again with a new token."
            ) from None

    def save(self, identity: Identity) -> None:
        """Keep an identity durably."""
        write_durably(self._path, msgspec.json.encode(identity))


@dataclass(frozen=True, slots=True)
class Registrar:
    """Registers this agent, as often as it takes for the control plane to be there."""

    control_plane: str
    client: HttpClient
    clock: ControlClock
    file: IdentityFile
    chance: Chance

    def kept(self, token: str, *, adopt: bool) -> Identity | None:
        """Give the identity from disk; None if this agent has to register.

        With `adopt` an agent that has an identity registers anew, once per token: the flag may stay
        in a service file over restarts.
        """
        kept = self.file.load()
        if kept is None or (adopt and token and kept.token_sha256 != _sha256(token)):
            return None
        return kept

    async def register(self, request: RegisterRequest) -> Identity:
        """Register with the one-time token, as often as it takes; RegistrationRefused is final."""
        if not request.token:
            raise RegistrationRefused(
                "This agent is not registered yet. Create a one-time token for it in the console "
                "(Nodes, Add node) and start it with --token-file or SIGNALBOX_TOKEN."
            )
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return await self._register_once(request)
            except CallFailed as error:
                log.warning("registration_waits", control_plane=self.control_plane, why=str(error))
            await asyncio.sleep(pause_s * (0.8 + 0.4 * self.chance.random()))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _register_once(self, request: RegisterRequest) -> Identity:
        asked_at = self.clock.monotonic()
        response = await self.client.call(
            "POST",
            self.control_plane + REGISTER_PATH,
            body=msgspec.json.encode(request),
            headers={"content-type": "application/json"},
            timeout_s=10.0,
        )
        reply = _read_reply(response)
        self.clock.learn(reply.server_time, asked_at=asked_at, answered_at=self.clock.monotonic())
        identity = Identity(
            agent=reply.agent,
            agent_token=reply.agent_token,
            public_key=reply.public_key,
            lineage=reply.lineage,
            report_interval_s=reply.report_interval_s,
            token_sha256=_sha256(request.token),
        )
        await asyncio.to_thread(self.file.save, identity)
        log.info("registered", agent=identity.agent, lineage=identity.lineage)
        return identity


def _read_reply(response: Response) -> RegisterReply:
    if 400 <= response.status < 500 and response.status not in PASSING:
        raise RegistrationRefused(
            f"The control plane refused the registration ({response.status}): "
            f"{error_text(response.body)} A token works once and for a limited time: create a new "
            "one in the console (Nodes, Add node) and start the agent with it."
        )
    if not response.ok:
        raise CallFailed(f"the control plane answered {response.status}")
    try:
        reply = msgspec.json.decode(response.body, type=RegisterReply)
        load_public_key(reply.public_key)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CallFailed(f"the control plane's answer is not a registration: {error}") from None
    return reply


class _ErrorBody(msgspec.Struct):
    message: str = ""
    detail: str = ""
    error: dict[str, object] | str = ""


def error_text(body: bytes) -> str:
    """Find the message in an error body, whatever its shape; at most 300 characters."""
    try:
        found = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.MsgspecError:
        return "no reason given."
    nested = found.error.get("message") if isinstance(found.error, dict) else found.error
    text = str(found.message or nested or found.detail or "no reason given")[:300]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
