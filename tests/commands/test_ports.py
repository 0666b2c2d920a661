"""A taken port is answered with the port, its holder and a way out."""

from __future__ import annotations

import os
import socket

import pytest
from stack import ports
from stack.layout import Ports
from stack.report import ProblemError


@pytest.fixture
def taken():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_the_message_names_port_service_holder_and_another_base(taken):
    with pytest.raises(ProblemError) as caught:
        ports.require_free({"web": taken, "redis": 1 + taken % 60000}, Ports(taken))
    assert f"{taken} (web)" in caught.value.message
    assert f"pid {os.getpid()}" in caught.value.message
    assert "bin/up --port-base" in caught.value.remedy


def test_a_port_is_free_again_when_its_holder_has_closed_it(taken):
    assert not ports.is_free(taken)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
    assert ports.is_free(free)


@pytest.mark.parametrize("base", [0, 80, 65300, 70000, -1])
def test_a_base_without_room_is_refused(base):
    with pytest.raises(ProblemError, match="does not leave room"):
        ports.check_base(base)


def test_the_ports_are_those_of_the_contract():
    at = Ports(8000)
    assert (at.web, at.traffic(1), at.traffic(2), at.admin(1), at.admin(2)) == (
        8000, 8101, 8102, 8201, 8202)  # fmt: skip
    assert (at.engine(1), at.redis, at.prometheus) == (8301, 8379, 8090)
