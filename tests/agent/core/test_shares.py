"""What an agent does with its part of a tenant's limits."""

from __future__ import annotations

import pytest

from routing_agent.core.limits import MINUTE_S, TenantGate
from routing_agent.core.shares import KEPT_S, WINDOW_S, Share
from routing_agent.wire import LeaseGrant, TenantLimits

NOW = 100.0


def leased(**limits: int) -> TenantLimits:
    """Give limits of all agents together."""
    return TenantLimits(leased=True, **limits)


def share_with(limits: TenantLimits, **granted: int) -> Share:
    """Give a share that was just granted something."""
    share = Share(NOW)
    ask = share.ask("acme", limits, (1, 10), 0, NOW)
    share.granted(ask, LeaseGrant(tenant="acme", **granted), NOW, NOW)
    return share


def test_a_gate_takes_up_and_lays_down_its_share_as_tables_say() -> None:
    """A tenant moves between limits of one agent and limits of all."""
    gate = TenantGate(TenantLimits(concurrency=2), NOW)
    assert gate.share is None
    gate.adopt(leased(concurrency=2), NOW)
    assert gate.share is not None
    gate.adopt(TenantLimits(concurrency=2), NOW)
    assert gate.share is None


@pytest.mark.parametrize("name", ["concurrency", "requests_per_minute", "tokens_per_minute"])
def test_a_limit_of_nothing_is_refused_without_asking_anybody(name: str) -> None:
    """No lease call could help, and a minute from now it will be no better."""
    refused = TenantGate(leased(**{name: 0}), NOW).admit(10, NOW)
    assert (refused.admitted, refused.limit, refused.may_lease) == (False, name, False)
    assert refused.retry_after_s == MINUTE_S


def test_a_lowered_limit_holds_at_once_though_more_is_in_hand() -> None:
    """The surplus goes back with the next call; nobody may use it until then."""
    share = share_with(leased(concurrency=5), slots=5)
    assert share.shortage(leased(concurrency=5), 2, 1, NOW) is None
    assert share.shortage(leased(concurrency=2), 2, 1, NOW) == "concurrency"
    assert share.shortage(leased(concurrency=2), 1, 1, NOW) is None


def test_how_long_to_wait_goes_by_what_the_whole_tenant_lacks() -> None:
    """Requests and tokens come back evenly over a minute; when a slot does, nobody knows."""
    limits = leased(concurrency=1, requests_per_minute=60, tokens_per_minute=600)
    share = Share(NOW)
    assert share.wait_s(limits, "requests_per_minute", 0) == pytest.approx(1.0)
    assert share.wait_s(limits, "tokens_per_minute", 20) == pytest.approx(2.0)
    assert share.wait_s(limits, "concurrency", 0) == 1.0


def test_a_debt_of_tokens_is_told_and_kept_when_the_lease_ends() -> None:
    """An answer may be longer than was charged: the control plane must hear of it."""
    limits = leased(tokens_per_minute=600)
    share = share_with(limits, tokens=10)
    share.take(limits, 1, 10)
    share.tokens -= 25
    assert share.is_due(limits, 0, NOW + 0.01)
    ask = share.ask("acme", limits, (0, 0), 0, share.until)
    assert ask.tokens_returned == -25


def test_what_is_used_is_kept_and_what_is_not_goes_back() -> None:
    """Twice the present pace stays in hand; of small limits nothing after two quiet windows."""
    limits = leased(requests_per_minute=59, tokens_per_minute=59)
    share = share_with(limits, requests=100, tokens=1000)
    share.take(limits, 1, 100)
    ask = share.ask("acme", limits, (0, 0), 0, NOW + WINDOW_S / 2)
    assert (ask.requests_returned, ask.tokens_returned) == (97, 700)
    assert (share.requests, share.tokens) == (2, 200)
    share.ask("acme", limits, (0, 0), 0, NOW + 1.1 * WINDOW_S)
    ask = share.ask("acme", limits, (0, 0), 0, NOW + 2.2 * WINDOW_S)
    assert (share.requests, share.tokens) == (0, 0)


def test_a_seconds_worth_of_a_large_limit_is_taken_ahead_and_kept_for_a_while() -> None:
    """Else whoever asks every other second would wait for a call each time."""
    limits = leased(requests_per_minute=600, tokens_per_minute=60_000)
    first = Share(NOW).ask("acme", limits, (1, 10), 0, NOW)
    assert (first.requests_ahead, first.tokens_ahead) == (10, 1000)
    share = share_with(limits, requests=12, tokens=1500)
    share.take(limits, 1, 10)
    now = NOW
    while now < NOW + 4:
        now += WINDOW_S
        share.ask("acme", limits, (0, 0), 0, now)
    assert (share.requests, share.tokens) == (10, 1000)
    assert share.shortage(limits, 0, 10, now) is None
    assert not share.is_due(limits, 0, now)
    assert share.is_due(limits, 0, NOW + WINDOW_S + KEPT_S)
    share.ask("acme", limits, (0, 0), 0, NOW + WINDOW_S + KEPT_S)
    assert (share.requests, share.tokens) == (0, 0)


def test_where_others_wait_the_control_plane_is_asked_each_window() -> None:
    """They may be gone by then, and what they left may be used again."""
    limits = leased(concurrency=4)
    share = share_with(limits, slots=1, keep=1)
    assert not share.is_due(limits, 1, NOW + WINDOW_S / 2)
    assert share.is_due(limits, 1, NOW + WINDOW_S)
