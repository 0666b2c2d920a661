"""Lease calls: how agents share the limits of tenants."""

from __future__ import annotations

from typing import Final

from routing_agent.wire.base import Count, Message, Seconds

# A lease that is not renewed for this long by the control plane's clock is free again.
LEASE_S: Final = 15.0


class LeaseAsk(Message, frozen=True, kw_only=True):
    """What an agent wants of one tenant's limits, and what it gives back.

    `slots` is what the agent holds from the moment it wrote this: it has given back the rest.
    Returned amounts may be negative: more was used than had been taken.
    """

    tenant: str
    slots: Count = 0
    in_use: Count = 0
    more_slots: Count = 0
    requests: Count = 0  # for requests that wait
    requests_ahead: Count = 0  # for those that are likely to come
    requests_returned: int = 0
    tokens: Count = 0
    tokens_ahead: Count = 0
    tokens_returned: int = 0


class LeaseRequest(Message, frozen=True, kw_only=True, tag_field="kind", tag="lease"):
    """A lease call. Sent again under the same mark until it is answered, then booked once.

    `start` grows with every start of the agent, `serial` with every call.
    """

    agent: str
    start: Count
    serial: Count
    asks: tuple[LeaseAsk, ...] = ()


class LeaseGrant(Message, frozen=True, kw_only=True):
    """What an agent may use of one tenant's limits from now on."""

    tenant: str
    slots: Count = 0  # held in all
    keep: Count | None = None  # others wait: above this, a slot that becomes free is given back
    requests: Count = 0  # to be added to what is in hand
    requests_left: float = 0.0  # with the control plane; below 0: used beyond the limit
    tokens: Count = 0
    tokens_left: float = 0.0
    reason: str = ""


class LeaseReply(Message, frozen=True, kw_only=True, tag_field="kind", tag="leased"):
    """The answer to a lease call, one grant an ask. Counts from when the call was sent."""

    grants: tuple[LeaseGrant, ...] = ()
    lease_s: Seconds = LEASE_S


class LeaseHealth(Message, frozen=True, kw_only=True):
    """How an agent's lease calls went since it started."""

    answered: Count = 0
    failed: Count = 0
    waited: Count = 0  # requests that waited for a call
    waited_in_vain: Count = 0  # of them, those that no answer reached in time
    mean_s: Seconds | None = None  # of answered calls
    last_error: str = ""  # empty: the last call was answered
