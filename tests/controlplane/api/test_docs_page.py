"""The API's documentation page in a real browser: complete, silent, and from our own origin."""

import pytest

from tests.chromium import chromium

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
NOUNS = ("pools", "replicas", "routing-tables", "explain", "which-model")


@pytest.fixture
def page():
    """Open one page of headless Chromium."""
    with chromium() as browser:
        yield browser.new_page()


def test_the_documentation_lists_every_noun_without_a_word_on_the_console(page, live_server):
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.emulate_media(color_scheme="dark")
    page.goto(f"{live_server.url}/api/docs/")
    page.wait_for_selector("html.dark-mode")
    page.wait_for_selector('.way-back a[href="/"]')
    # Their operations are closed: open ones would push most nouns out of what the page draws.
    for noun in NOUNS:
        page.wait_for_selector(f'.opblock-tag[data-tag="{noun}"]')
    page.locator('.opblock-tag[data-tag="pools"]').click()
    page.locator(".opblock").first.click()
    page.wait_for_selector(".opblock-body")
    assert said == []
    assert [u for u in asked if not u.startswith((live_server.url, "data:"))] == []
