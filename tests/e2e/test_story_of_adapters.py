"""The story of an adapter over real processes: uploaded, served to its tenant alone, deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import adapters
from tests.chromium import chromium
from tests.e2e.scene import Client, Scene, scene_of
from tests.e2e.stack import Stack, eventually

pytestmark = [
    *(pytest.mark.e2e, pytest.mark.story, pytest.mark.browser),
    *(pytest.mark.slow, pytest.mark.timeout(400)),
]
MODEL = "woven-7b"
FAST = ("--speed", "8")
LIVE_WITHIN_S = 60.0
PASSWORD = "woven-by-hand-7"
PATIENCE_MS = 60_000


@pytest.fixture(scope="module")
def scene(started_stack: Stack) -> Iterator[Scene]:
    """A model with one engine on the first node."""
    started_stack.mend()
    with scene_of(started_stack) as one:
        one.operator.make("models/", name=MODEL)
        one.pool("woven", MODEL, "v1")
        one.operator.change("pools/woven/splits/", weights={"woven": 100})
        yield one


def answer_of(client: Client, model: str) -> Any:
    """Give an answer if there is one; until then it is a 404 of an old table, or a 503."""
    answer = client.ask(model)
    assert answer.status_code in (200, 404, 502, 503)
    return answer if answer.status_code == 200 else None


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def uploads(scene: Scene, tab: Any, tenant: str, name: str) -> str:
    """Upload an adapter as an invited member does who comes for the first time; gives its id."""
    invited = scene.operator.make(
        "memberships/", tenant=tenant, username="ada", role="tenant_member"
    )
    origin = f"http://127.0.0.1:{scene.stack.ports.web}"
    tab.goto(origin + invited["invitation"])
    for field in ("New password", "New password confirmation"):
        tab.get_by_label(field, exact=True).fill(PASSWORD)
    tab.get_by_role("button", name="Set password").click()
    tab.wait_for_url(f"{origin}/t/{tenant}/")
    tab.goto(f"{origin}/t/{tenant}/adapters/upload/")
    tab.get_by_label("Name").fill(name)
    tab.get_by_label("Base model").select_option(MODEL)
    files = {
        "adapter_config.json": adapters.config_bytes(base_model_name_or_path=MODEL),
        "adapter_model.safetensors": adapters.weights(),
    }
    tab.get_by_label("Files").set_input_files(
        [{"name": n, "mimeType": "", "buffer": content} for n, content in files.items()]
    )
    tab.get_by_role("button", name="Upload adapter").click()
    tab.wait_for_url(re.compile(f"/t/{tenant}/adapters/adp-"))
    return str(tab.url.rstrip("/").rpartition("/")[2])


def test_an_adapter_is_served_to_its_tenant_alone_until_it_is_deleted(scene: Scene):
    engine = scene.serve("woven", MODEL, *FAST)
    weaver, stranger = scene.tenant("weaver"), scene.tenant("stranger")
    client = scene.client(weaver)
    with chromium() as browser:
        tab = browser.new_page()
        tab.set_default_timeout(PATIENCE_MS)
        adapter = uploads(scene, tab, "weaver", "silk")
        tab.locator("main").get_by_text("serving").first.wait_for()  # the page's own clock ticks
        elsewhere = tab.url.replace("/weaver/", "/stranger/")
        assert tab.request.get(elsewhere).status == 404
    eventually(lambda: answer_of(client, "silk"), limit_s=LIVE_WITHIN_S)
    [served] = engine.adapters
    assert served.startswith("weaver.silk.")
    answered = engine.finished
    silk, base = text_of(client.ask("silk")), text_of(client.ask(MODEL))
    assert silk != base
    assert engine.finished == answered + 2
    assert text_of(client.ask(MODEL, lora="silk")) == silk
    assert "silk" in client.models()

    other = scene.client(weaver, agent=2)  # not on the replica's node: sees the engine's list
    eventually(lambda: answer_of(other, "silk"))
    assert text_of(other.ask("silk")) == silk

    refused = scene.client(stranger).ask("silk")
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert "silk" not in scene.client(stranger).models()

    path = f"adapters/{adapter}/"
    assert scene.operator.get(path)["progress"]["code"] == "serving"

    with scene.stack.frozen("redis"):  # agents mend alone; what is changed is stored, and waits
        scene.restart(engine, MODEL, *FAST)
        eventually(lambda: answer_of(client, "silk"), limit_s=LIVE_WITHIN_S)
        assert engine.adapters == {served}
        # The restart may be noticed only now, and all that was loaded is looked up once more.
        assert text_of(eventually(lambda: answer_of(client, "silk"))) == silk
        scene.operator.send("DELETE", path, wanted=204)
        assert text_of(client.ask("silk")) == silk
    eventually(lambda: client.ask("silk").status_code == 404)
    eventually(lambda: engine.adapters == set())
