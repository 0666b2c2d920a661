"""The tick: what the reader does survives it, hidden tabs are silent, old figures look old."""

from __future__ import annotations

import pytest

from controlplane.fleet.models import Replica

pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


def test_what_was_typed_and_opened_survives_ticks_that_change_the_page(visit, fleet):
    visitor = visit().go("/pools/chat/")
    tab = visitor.tab
    ready = fleet.ready.public_id
    tab.click(f"#drain-{ready} > summary")
    tab.fill(f"#drain-{ready} input[name=reason]", "because I")
    tab.focus(f"#drain-{ready} input[name=reason]")
    row = tab.locator(f"#replica-{fleet.other.public_id}").element_handle()
    for state in ("draining", "ejected", "ready"):
        Replica.objects.filter(pk=fleet.other.pk).update(state=state)
        visitor.tick()
        tab.wait_for_selector(f"#replica-{fleet.other.public_id} .chip:has-text('{state}')")
    assert tab.input_value(f"#drain-{ready} input[name=reason]") == "because I"
    assert tab.locator(f"#drain-{ready}").get_attribute("open") is not None
    assert tab.evaluate("document.activeElement.name") == "reason"
    assert row.evaluate("e => e.isConnected")


def test_the_filter_being_typed_is_not_overwritten(visit, fleet):
    visitor = visit().go("/pools/")
    visitor.tab.fill("#filter_q", "cha")
    visitor.tick()
    assert visitor.tab.input_value("#filter_q") == "cha"


def test_a_reader_s_zoom_survives_the_tick(visit, fleet):
    visitor = visit().go("/pools/chat/")
    read = "document.querySelector('#chart-ttft .draw').layout.yaxis.range[1]"
    visitor.tab.evaluate(
        "Plotly.relayout(document.querySelector('#chart-ttft .draw'), {'yaxis.range': [0, 9]})"
    )
    visitor.tab.evaluate("document.querySelector('#chart-ttft').etag = ''")
    visitor.tick()
    assert visitor.tab.evaluate(read) == 9


def test_nothing_is_sent_again_when_nothing_changed(visit, fleet):
    visitor = visit().go("/versions/")
    answers = []
    visitor.tab.on("response", lambda r: answers.append((r.url, r.status)))
    visitor.tick()
    visitor.tick()
    statuses = [status for url, status in answers if url.endswith("/versions/")]
    assert statuses[-1] == 204


def test_a_hidden_tab_sends_nothing_and_catches_up_when_shown(visit, fleet):
    visitor = visit()
    tab = visitor.tab
    tab.clock.install()
    tab.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.isHidden})")
    visitor.go("/pools/chat/")
    tab.evaluate("window.isHidden = true")
    visitor.settle()  # the first tick comes at random: its answers may still be awaited
    visitor.asked.clear()
    tab.clock.run_for(60_000)
    assert visitor.asked == []
    tab.evaluate("window.isHidden = false")
    tab.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    visitor.settle()
    assert any("/live/pools/chat/ttft.json" in url for url in visitor.asked)


def test_the_clock_ticks_every_five_seconds_and_slows_down_without_a_reader(visit, fleet):
    visitor = visit()
    tab = visitor.tab
    tab.clock.install()
    visitor.go("/versions/")
    tab.evaluate("window.ticks = 0; document.body.addEventListener('tick', () => window.ticks++)")
    for _ in range(6):
        tab.clock.run_for(5_000)
        visitor.settle()
    assert 5 <= tab.evaluate("window.ticks") <= 7
    tab.clock.fast_forward(700_000)
    visitor.settle()
    tab.evaluate("window.ticks = 0")
    for _ in range(6):
        tab.clock.run_for(5_000)
        visitor.settle()
    assert tab.evaluate("window.ticks") <= 1


def test_paused_means_paused(visit, fleet):
    visitor = visit()
    visitor.tab.clock.install()
    visitor.go("/versions/")
    visitor.tab.keyboard.press("p")
    assert visitor.text("#live-switch") == "Paused"
    visitor.settle()
    visitor.asked.clear()
    visitor.tab.clock.run_for(30_000)
    assert visitor.asked == []


def test_figures_that_no_longer_arrive_look_old(visit, fleet):
    visitor = visit().go("/pools/chat/")
    visitor.tab.route("**/pools/chat/**", lambda route: route.abort())
    for _ in range(3):
        visitor.tick()
    visitor.tab.wait_for_selector("#live-part[data-state=stale]")
    visitor.tab.wait_for_selector("#chart-ttft[data-state=stale]")
    assert "As of" in visitor.text("#chart-ttft .stale-note")
    assert "does not answer" in visitor.text()
    visitor.tab.unroute("**/pools/chat/**")
    visitor.tick()
    visitor.tab.wait_for_selector("#live-part[data-state=live]")
    visitor.tab.wait_for_selector("#chart-ttft[data-state=live]")


def test_a_session_that_ended_leads_to_the_login_page_not_into_a_table(visit, fleet):
    visitor = visit().go("/pools/")
    visitor.tab.context.clear_cookies()
    visitor.tab.evaluate("document.body.dispatchEvent(new CustomEvent('tick'))")
    visitor.tab.wait_for_selector("#id_username")  # each part of the page leads there
    assert "/login/" in visitor.tab.url


def test_keys_go_to_pages_and_to_the_search_and_can_be_switched_off(visit, fleet):
    visitor = visit().go("/")
    tab = visitor.tab
    tab.keyboard.press("g")
    tab.keyboard.press("n")
    tab.wait_for_url("**/nodes/")
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "search"
    tab.keyboard.type("acme")
    tab.wait_for_selector("#search-results a")
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/tenants/acme/")
    tab.keyboard.press("?")
    assert tab.locator("#help").is_visible()
    tab.keyboard.press("Escape")
    visitor.go("/profile/")
    tab.check("input[name=shortcuts][value=off]")
    tab.click("text=Keep")
    visitor.settle()
    tab.keyboard.press("g")
    tab.keyboard.press("n")
    assert tab.url.endswith("/profile/")


def test_rows_are_walked_with_j_and_k(visit, fleet):
    visitor = visit().go("/pools/")
    visitor.tab.keyboard.press("j")
    visitor.tab.keyboard.press("j")
    visitor.tab.keyboard.press("k")
    first = visitor.tab.locator("tbody tr a").first.inner_text()
    assert visitor.tab.evaluate("document.activeElement.innerText") == first
    visitor.tab.keyboard.press("Enter")
    visitor.tab.wait_for_url(f"**/pools/{first}/")
