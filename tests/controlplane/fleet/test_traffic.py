"""Weights of a model's pools, set in the console."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.fleet.models import TrafficSplit
from tests.controlplane.staff import signed_in
from tests.factories import make_pool

pytestmark = pytest.mark.django_db

PATH = "/pools/chat/traffic/"


def weights() -> dict[str, float]:
    return dict(TrafficSplit.objects.values_list("pool__slug", "weight"))


def test_weights_are_shown_changed_with_a_reason_and_never_over_somebody_elses_change():
    pool = make_pool("chat", weight=70.0)
    make_pool("chat-v2", weight=30.0)
    make_pool("other", model="m2")
    operator = signed_in("operator")
    page = operator.get(PATH).content.decode()
    assert "Now 30: 30 %." in page
    assert "weight-other" not in page
    assert PATH in operator.get("/pools/chat/").content.decode()

    seen = {"version": pool.model_version.model.version, "reason": "half and half"}
    given = {"weight-chat": "50", "weight-chat-v2": "50", **seen}
    assert operator.post(PATH, given | {"reason": ""}).status_code == 200  # asks why
    assert operator.post(PATH, given | {"weight-chat": "-1"}).status_code == 200
    assert weights() == {"chat": 70.0, "chat-v2": 30.0, "other": 100.0}
    assert operator.post(PATH, given).status_code == 302
    assert weights() == {"chat": 50.0, "chat-v2": 50.0, "other": 100.0}
    assert AuditEvent.objects.get(verb="model.set_splits").reason == "half and half"
    stale = operator.post(PATH, given | {"weight-chat": "1"}).content.decode()
    assert "problem-box" in stale
    assert weights()["chat"] == 50.0

    viewer = signed_in("viewer")
    assert viewer.post(PATH, given).status_code == 403
    assert PATH not in viewer.get("/pools/chat/").content.decode()
