"""Who may command an agent: signature, time, nonce."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent import wire
from routing_agent.control.clock import ControlClock
from routing_agent.control.signatures import SignatureRefused, Verifier, load_public_key
from tests.fakes.control_plane import FakeControlPlane

PATH = "/agent/v1/routing-table"


class Hands:
    """A clock moved by hand: the control plane's and, with an offset, the agent's."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.wall_error_s = 0.0

    def control(self) -> float:
        return 1_800_000_000.0 + self.passed_s

    def monotonic(self) -> float:
        return 5.0 + self.passed_s

    def wall(self) -> float:
        return self.control() + self.wall_error_s


@pytest.fixture
def hands():
    return Hands()


@pytest.fixture
def control_plane(hands):
    return FakeControlPlane(now=hands.control)


@pytest.fixture
def clock(hands):
    clock = ControlClock(monotonic=hands.monotonic, wall=hands.wall)
    clock.learn(hands.control(), asked_at=hands.monotonic(), answered_at=hands.monotonic())
    return clock


@pytest.fixture
def verifier(control_plane, clock):
    return Verifier(control_plane.public_key, clock)


def refusal(verifier, headers, *, method="PUT", path=PATH, body=b"{}"):
    with pytest.raises(SignatureRefused) as refused:
        verifier.check(method=method, path=path, body=body, headers=headers)
    return refused.value.code


def test_a_signed_call_is_accepted(verifier, control_plane):
    headers = control_plane.signature("PUT", PATH, b"{}")
    verifier.check(method="PUT", path=PATH, body=b"{}", headers=headers)


def test_a_call_without_signature_names_what_is_missing(verifier):
    with pytest.raises(SignatureRefused, match=wire.NONCE_HEADER):
        verifier.check(method="PUT", path=PATH, body=b"{}", headers={})


@pytest.mark.parametrize(
    "altered",
    [{"method": "GET"}, {"path": PATH + "?force=1"}, {"body": b"{ }"}],
    ids=["method", "path", "body"],
)
def test_an_altered_call_is_refused(verifier, control_plane, altered):
    assert refusal(verifier, control_plane.signature("PUT", PATH, b"{}"), **altered) == (
        "wrong_signature"
    )


def test_another_control_planes_signature_is_refused(verifier, hands):
    stranger = FakeControlPlane(now=hands.control)
    assert refusal(verifier, stranger.signature("PUT", PATH, b"{}")) == "wrong_signature"


def test_a_replayed_call_is_refused(verifier, control_plane, hands):
    headers = control_plane.signature("PUT", PATH, b"{}")
    verifier.check(method="PUT", path=PATH, body=b"{}", headers=headers)
    hands.passed_s += 59
    assert refusal(verifier, headers) == "replayed"


@pytest.mark.parametrize("age_s", [61, -61, 3600])
def test_a_call_outside_the_window_is_refused(verifier, control_plane, hands, age_s):
    hands.passed_s += 7200
    headers = control_plane.signature("PUT", PATH, b"{}", at=hands.control() - age_s)
    assert refusal(verifier, headers) == "out_of_time"


def test_a_time_that_is_no_number_of_seconds_is_refused(verifier, control_plane):
    assert refusal(verifier, control_plane.signature("PUT", PATH, b"{}", at=float("nan"))) == (
        "out_of_time"
    )
    headers = control_plane.signature("PUT", PATH, b"{}") | {wire.TIME_HEADER: "noon"}
    assert refusal(verifier, headers) == "malformed"


def test_a_call_recorded_before_a_restart_is_refused_after_it(control_plane, clock, hands):
    recorded = control_plane.signature("PUT", PATH, b"{}")
    hands.passed_s += 10
    assert refusal(Verifier(control_plane.public_key, clock), recorded) == "before_start"


def test_nonces_are_forgotten_once_their_time_is_over(verifier, control_plane, hands):
    for _ in range(50):
        headers = control_plane.signature("PUT", PATH, b"{}")
        verifier.check(method="PUT", path=PATH, body=b"{}", headers=headers)
        hands.passed_s += 10
    assert len(verifier._seen) <= 8


@given(wall_error_s=st.floats(-1e6, 1e6), step_s=st.floats(-1e6, 1e6))
def test_the_agents_wall_clock_does_not_matter(wall_error_s, step_s):
    hands = Hands()
    hands.wall_error_s = wall_error_s
    control_plane = FakeControlPlane(now=hands.control)
    clock = ControlClock(monotonic=hands.monotonic, wall=hands.wall)
    clock.learn(hands.control(), asked_at=hands.monotonic(), answered_at=hands.monotonic())
    verifier = Verifier(control_plane.public_key, clock)
    hands.wall_error_s += step_s
    hands.passed_s += 30
    headers = control_plane.signature("PUT", PATH, b"{}")
    verifier.check(method="PUT", path=PATH, body=b"{}", headers=headers)


@pytest.mark.parametrize("text", ["", "not base64!", "c2hvcnQ="])
def test_a_public_key_that_is_none_says_so(text):
    with pytest.raises(ValueError, match="Ed25519"):
        load_public_key(text)
