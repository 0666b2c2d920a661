"""The story of the product's nouns, over real processes: told by tenants, operators and engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml

from tests.e2e.scene import REASON, Engine, Load, Operator, Scene, scene_of
from tests.e2e.stack import Stack, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.story, pytest.mark.slow, pytest.mark.timeout(400)]
MODEL = "story-7b"
CONTROL_PLANE = ("web", "worker", "beat", "redis")
# Engines of a busy machine differ by much more than a tenth although they are the same.
LENIENT: dict[str, Any] = {"bake_s": 10, "min_requests": 60, "regression_limit": 10}
FAST = ("--speed", "8", "--max-num-seqs", "64")


@pytest.fixture(scope="module")
def scene(started_stack: Stack) -> Iterator[Scene]:
    """A model of which every session goes to pool "story"."""
    started_stack.mend()
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


@dataclass(frozen=True)
class Trouble:
    """What was planted when the story began, so that it shows while other chapters are told."""

    slow: Engine
    slow_id: str
    frail: Engine


@pytest.fixture(scope="module", autouse=True)
def trouble(scene: Scene, key: str) -> Iterator[Trouble]:
    """A pool with one slow replica of three, and one whose engine fails; both under load."""
    for name in ("sluggish", "frail"):
        scene.operator.make("models/", name=name)
        scene.pool(name, name, "v1")
        scene.operator.change(f"pools/{name}/splits/", weights={name: 100})
    scene.operator.change("slos/frail/", availability_ratio=0.99999)
    for _ in range(2):
        scene.serve("sluggish", "sluggish", *FAST)
    slow, frail = scene.serve("sluggish", "sluggish", *FAST), scene.serve("frail", "frail", *FAST)
    scene.operator.change(
        "pools/sluggish/", settings={"policy": "round_robin", "stall_limit_s": 30}
    )
    scene.pool("frail-next", "frail", "v2")
    scene.serve("frail-next", "frail", *FAST)
    ids = scene.operator.get("replicas/?pool=sluggish")["results"]
    slow_id = next(replica["id"] for replica in ids if replica["url"] == slow.url)
    slow.plant(slow=4000)  # 3 s a token
    frail.plant(fail={"status": 500})
    client = scene.client(key, agent=2)
    with (
        Load(client, "sluggish", clients=4, max_tokens=2, pause_s=1),
        Load(client, "frail", clients=1, max_tokens=4, pause_s=0.5),
    ):
        yield Trouble(slow, slow_id, frail)


def rolled_out(scene: Scene, canary: str, *, stable: str = "story", **fields: Any) -> str:
    made = scene.operator.make("rollouts/", stable_pool=stable, canary_pool=canary, **fields)
    scene.operator.observed(made)
    return f"rollouts/{made['id']}/"


def reaches(scene: Scene, rollout: str, phase: str, *, limit_s: float) -> None:
    """Wait for a phase; what it says of itself is told if it ends elsewhere, or never."""

    def now() -> Any:
        return scene.operator.get(rollout)

    try:
        eventually(lambda: now()["phase"] != "Progressing", limit_s=limit_s)
    except AssertionError as late:
        raise AssertionError(now()) from late
    assert now()["phase"] == phase, now()


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
    with Load(scene.client(key), MODEL, clients=12, max_tokens=16, pause_s=0.3) as load:
        reaches(scene, rollout, "Degraded", limit_s=120)
        assert weights(scene)["story-slow"] == 0
        stopped_at = slow.finished
        assert stopped_at > 0
    assert load.failures == []
    assert "P99" in scene.operator.get(rollout)["reason"]
    assert slow.finished <= stopped_at + 12  # what it had begun


def test_an_alert_fires_and_its_diagnosis_names_the_slow_replica(scene: Scene, trouble: Trouble):
    operator = scene.operator
    firing = "alerts/?rule=ttft-high&pool=sluggish&state=firing"
    alert = eventually(lambda: operator.get(firing)["results"], limit_s=240)[0]
    found = operator.get(f"diagnoses/sluggish/?alert={alert['id']}")
    assert found["cause_step"] == "slow-replica", found
    assert trouble.slow_id in found["cause"]
    noted = operator.act(f"alerts/{alert['id']}/acknowledge/")
    assert (noted["acknowledged_by"], noted["note"]) == ("admin", REASON)
    trouble.slow.plant(slow=None)  # it is to clear by the end of the story


def test_a_good_version_reaches_everybody(scene: Scene, key: str):
    scene.pool("story-next", MODEL, "v3")
    good = scene.serve("story-next", MODEL, *FAST)
    rollout = rolled_out(scene, "story-next", percents=[25, 100], **LENIENT)
    with Load(scene.client(key), MODEL, clients=12, max_tokens=16, pause_s=0.3) as load:
        reaches(scene, rollout, "Healthy", limit_s=180)
        assert weights(scene)["story-next"] == 100
    assert load.failures == []
    before = good.finished
    assert scene.client(key).ask(MODEL).headers["x-signalbox-version"] == "v3"
    eventually(partial(lambda: good.finished == before + 1))


def test_a_shadow_answers_copies_and_delays_nobody_when_it_stalls(scene: Scene, key: str):
    scene.pool("story-shadow", MODEL, "v4")
    shadow = scene.serve("story-shadow", MODEL, *FAST)
    made = scene.operator.send(
        *("PUT", "shadows/story-next/"), wanted=200, shadow_pool="story-shadow", ratio=1, at_once=4
    )
    scene.operator.observed(made)
    client = scene.client(key)
    assert client.ask(MODEL).headers["x-signalbox-version"] == "v3"
    pairs = "shadow-pairs/?shadow_pool=story-shadow"
    eventually(lambda: scene.operator.get(pairs)["count"] == 1)
    assert shadow.finished >= 1
    pair = scene.operator.get(pairs)["results"][0]
    assert (pair["primary"]["status"], pair["shadow"]["status"]) == (200, 200)
    shadow.plant(hang={})  # for ever: longer than a client has patience
    with Load(client, MODEL, clients=6, max_tokens=16) as load:
        eventually(lambda: load.finished >= 60)
    assert load.failures == []
    assert set(load.versions) == {"v3"}
    scene.operator.send("DELETE", f"shadows/story-next/?reason={REASON}", wanted=204)


def test_what_is_under_way_when_the_control_plane_is_killed_ends_as_it_should(
    scene: Scene, key: str
):
    operator, stack = scene.operator, scene.stack
    engine = scene.serve("story-next", MODEL, *FAST)
    leaving = scene.serve("story-next", MODEL, *FAST)
    rows = operator.get("replicas/?pool=story-next")["results"]
    leaver = next(r["id"] for r in rows if r["url"] == leaving.url)
    operator.send("PATCH", "pools/story-next/splits/", wanted=200, weights={"story": 0})
    rollout = rolled_out(scene, "story", stable="story-next", percents=[50, 100], **LENIENT)
    with Load(scene.client(key), MODEL, clients=12, max_tokens=16, pause_s=0.3) as load:
        eventually(lambda: leaving.says("vllm:num_requests_running") > 0)
        operator.act(f"replicas/{leaver}/drain/")
        scene.upload("fable", "tale", MODEL)
        stack.kill(*CONTROL_PLANE)
        for name in CONTROL_PLANE:
            stack.command("down", name)
        at_outage = load.finished
        eventually(lambda: load.finished > at_outage + 40)
        stack.up()
        eventually(partial(operator.replica_is, leaver, "stopped"), limit_s=120)
        eventually(lambda: engine.adapters, limit_s=120)
        eventually(lambda: scene.client(key).ask("tale").status_code == 200, limit_s=60)
        reaches(scene, rollout, "Healthy", limit_s=240)
    assert load.failures == []
    assert weights(scene)["story"] == 100


def test_an_exhausted_budget_refuses_a_rollout_unless_somebody_answers_for_it(
    scene: Scene, trouble: Trouble
):
    operator = scene.operator
    eventually(lambda: operator.get("slos/frail/")["budget"]["state"] == "exhausted", limit_s=240)
    trouble.frail.plant(fail=None)
    asked = {"stable_pool": "frail", "canary_pool": "frail-next"}
    refused = operator.send("POST", "rollouts/", wanted=409, **asked)
    assert "budget" in refused["error"]["message"]
    begun = operator.make("rollouts/", override_budget=True, **asked)
    trail = operator.get(f"audit-events/?target={begun['id']}&verb=rollout.override_budget")
    assert [event["reason"] for event in trail["results"]] == [REASON]
    operator.act(f"rollouts/{begun['id']}/abort/")


def test_the_alert_has_cleared(scene: Scene):
    resolved = "alerts/?rule=ttft-high&pool=sluggish&state=resolved"
    alert = eventually(lambda: scene.operator.get(resolved)["results"], limit_s=240)[0]
    assert alert["acknowledged_by"] == "admin"


def table_of(scene: Scene) -> dict[str, Any]:
    """Give the newest table without what replicas do rather than are."""
    table = scene.operator.get("routing-tables/current/")["table"]
    for name in ("epoch", "fleet_revision", "created_at", "digest"):
        table.pop(name, None)
    for pool in table.get("pools", []):
        if pool["name"] == "growing":
            pool.pop("endpoints", None)  # agents start them anew
        for endpoint in pool.get("endpoints", []):
            for name in ("state", "ready_at", "adapters"):
                endpoint.pop(name, None)
    return dict(table)


def stop_all_replicas(operator: Operator) -> None:
    """Drain every replica until it is stopped: the file removes none that serves."""

    def left() -> list[dict[str, Any]]:
        rows = operator.get("replicas/?page_size=200")["results"]
        return [r for r in rows if r["state"] not in ("stopped", "failed")]

    for replica in left():
        if replica["state"] != "draining":
            operator.act(f"replicas/{replica['id']}/drain/", limit_s=1)
    eventually(lambda: not left(), limit_s=90)


def test_the_configuration_is_wiped_and_comes_back_from_its_file(scene: Scene, key: str):
    operator, client = scene.operator, scene.client(key)
    exported = operator.client.get("/api/v1/export/").text
    before = table_of(scene)
    for rollout in operator.get("rollouts/?running=true")["results"]:
        operator.act(f"rollouts/{rollout['id']}/abort/")  # of a chapter that ended badly
    # Without nodes there were no agents: those stay.
    operator.act("apply/", yaml="signalbox: 1\nscaling: []\n", remove=True)
    stop_all_replicas(operator)
    sections = [n for n in yaml.safe_load(exported) if n not in ("signalbox", "nodes")]
    nothing = yaml.safe_dump({"signalbox": 1} | {name: [] for name in sections})
    try:
        operator.observed(operator.act("apply/", yaml=nothing, remove=True))
        assert "pools" not in table_of(scene)
        eventually(lambda: client.ask(MODEL).status_code == 401)
    finally:
        operator.observed(operator.act("apply/", yaml=exported))
    assert table_of(scene) == before
    eventually(lambda: client.ask(MODEL).status_code == 200)
    assert operator.client.get("/api/v1/export/").text == exported
