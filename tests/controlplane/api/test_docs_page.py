"""The API's documentation page in a real browser: complete, silent, and from our own origin."""

import os
import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
NOUNS = ("pools", "replicas", "routing-tables", "explain", "which-model")


@pytest.fixture
def page(monkeypatch):
    """Open one page of headless Chromium."""
    from playwright.sync_api import sync_playwright

    # Playwright's loop runs in this thread; the database is used by the server's thread alone.
    monkeypatch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser.new_page()
        browser.close()


def test_the_documentation_lists_every_noun_without_a_word_on_the_console(page, live_server):
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{live_server.url}/api/docs/")
    # Their operations are closed: open ones would push most nouns out of what the page draws.
    for noun in NOUNS:
        page.wait_for_selector(f'.opblock-tag[data-tag="{noun}"]')
    page.locator('.opblock-tag[data-tag="pools"]').click()
    page.locator(".opblock").first.click()
    page.wait_for_selector(".opblock-body")
    assert said == []
    assert [u for u in asked if not u.startswith((live_server.url, "data:"))] == []
