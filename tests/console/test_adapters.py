"""Uploading an adapter in a real browser: progress, checks, and where it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.catalog.models import Adapter
from controlplane.fleet.services import reconcile_adapters
from tests import adapters as made

pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    written = {
        "adapter_config.json": made.config_bytes(),
        "adapter_model.safetensors": made.weights(fill=7),
        "bad/adapter_config.json": made.config_bytes(use_dora=True),
    }
    for name, content in written.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return [str(tmp_path / name) for name in written]


@pytest.mark.parametrize("script", [True, False])
def test_a_tenant_uploads_is_told_what_is_wrong_and_then_where_it_is(visit, fleet, files, script):
    config, weights, bad = files
    visitor = visit("operator", java_script_enabled=script)
    tab = visitor.tab
    tab.goto(f"{visitor.origin}/t/acme/adapters/")
    tab.get_by_role("link", name="Upload adapter").click()
    assert "rank 64 at most" in tab.inner_text("main")
    tab.get_by_label("Name").fill("support")
    tab.get_by_label("Base model").select_option("m")
    tab.get_by_label("Files").set_input_files([bad, weights])
    tab.get_by_role("button", name="Upload adapter").click()
    tab.locator("#upload-result .problem-box").wait_for()
    told = " ".join(tab.inner_text("#upload-result").split())
    assert "use_dora" in told
    assert "✕ Method" in told
    assert "✓ Tensors" in told
    if not script:  # a page of its own, with an empty file field
        assert tab.get_by_label("Name").input_value() == "support"
    tab.get_by_label("Files").set_input_files([config, weights])
    tab.get_by_role("button", name="Upload adapter").click()
    tab.wait_for_url(re.compile("/t/acme/adapters/adp-"))
    assert Adapter.objects.get(name="support").versions.get().rank == 8
    assert tab.inner_text("#adapter-name") == "support"
    assert "loading 0 of 2 replicas" in " ".join(tab.inner_text("main").split())  # not told yet
    assert visitor.said == ["Failed to load resource: the server responded with a status of 400"
                            " (Bad Request)"] * len(visitor.said)  # fmt: skip


def test_the_page_follows_the_loop(visit, fleet):
    visitor = visit("viewer").go(f"/adapters/{fleet.adapter}/")
    before = visitor.text()
    reconcile_adapters()
    visitor.tick()
    assert "replicas" in visitor.text()
    assert visitor.text() != before
