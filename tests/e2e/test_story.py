"""The story of the product's nouns, over real processes: told by tenants, operators and engines."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.scene import Load, Scene, scene_of
from tests.e2e.stack import Stack, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
MODEL = "story-7b"
FAST = ("--speed", "8", "--max-num-seqs", "64")


@pytest.fixture(scope="module")
def scene(started_stack: Stack) -> Iterator[Scene]:
    """A model of which every session goes to pool "story"."""
    started_stack.up()
    with scene_of(started_stack) as made:
        made.operator.make("models/", name=MODEL)
        made.pool("story", MODEL, "v1")
        made.serve("story", MODEL, *FAST)
        made.operator.change("pools/story/splits/", weights={"story": 100})
        yield made


@pytest.fixture(scope="module")
def key(scene: Scene) -> str:
    """A key of a tenant without limits."""
    return scene.tenant("fable")


def rolled_out(scene: Scene, canary: str, **fields: object) -> str:
    made = scene.operator.make("rollouts/", stable_pool="story", canary_pool=canary, **fields)
    scene.operator.observed(made)
    return f"rollouts/{made['id']}/"


def weights(scene: Scene) -> dict[str, float]:
    return dict(scene.operator.get("pools/story/splits/")["weights"])


def test_a_burst_meets_its_quota_and_recovers(scene: Scene):
    client = scene.client(scene.tenant("burst", requests_per_minute=20))
    statuses = client.ask_at_once(40, MODEL)
    assert statuses[200] <= 20
    assert statuses[429] == 40 - statuses[200] >= 20
    refused = client.ask(MODEL)
    assert (refused.status_code, refused.json()["error"]["limit"]) == (429, "requests_per_minute")
    assert 0 < int(refused.headers["retry-after"]) <= 60
    eventually(lambda: client.ask(MODEL).status_code == 200)


def test_a_slower_version_is_stopped_by_itself(scene: Scene, key: str):
    scene.pool("story-slow", MODEL, "v2-slow")
    slow = scene.serve("story-slow", MODEL, "--speed", "1")
    rollout = rolled_out(scene, "story-slow", percents=[50, 100], bake_s=120, min_requests=50)
    with Load(scene.client(key), MODEL, clients=12, max_tokens=16) as load:
        eventually(lambda: scene.operator.get(rollout)["phase"] == "Degraded", limit_s=120)
        assert weights(scene)["story-slow"] == 0
        stopped_at = slow.finished
        assert stopped_at > 0
    assert load.failures == []
    assert "P99" in scene.operator.get(rollout)["reason"]
    assert slow.finished <= stopped_at + 12  # what it had begun


def test_a_good_version_reaches_everybody(scene: Scene, key: str):
    scene.pool("story-next", MODEL, "v3")
    good = scene.serve("story-next", MODEL, *FAST)
    rollout = rolled_out(scene, "story-next", percents=[25, 100], bake_s=1, min_requests=60)
    with Load(scene.client(key), MODEL, clients=12, max_tokens=16) as load:
        eventually(lambda: scene.operator.get(rollout)["phase"] == "Healthy", limit_s=180)
        assert weights(scene)["story-next"] == 100
    assert load.failures == []
    before = good.finished
    assert scene.client(key).ask(MODEL).headers["x-signalbox-version"] == "v3"
    eventually(partial(lambda: good.finished == before + 1))
