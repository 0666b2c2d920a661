"""A request looked up in a real browser: from the search box to the bar of its stages."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.django_db(transaction=True)]

WIDTHS = """[...document.querySelectorAll(".stage-bar rect")]
  .map(r => [r.getAttribute("class"), r.getBoundingClientRect().width, getComputedStyle(r).fill])"""


def test_a_request_id_in_the_search_box_leads_to_its_stages(visit, fleet):
    visitor = visit("viewer").go("/")
    visitor.tab.fill("#search", "req-bad")
    visitor.until("document.querySelector('#search-results a') !== null")
    visitor.tab.click("#search-results a")
    visitor.tab.wait_for_url("**/requests/req-bad/")
    assert "the engine answered 500" in visitor.text()
    assert visitor.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_bar_shows_each_stage_at_its_length(visit, fleet, scheme):
    visitor = visit("viewer", color_scheme=scheme).go("/requests/req-1/")
    widths = {name: width for name, width, _ in visitor.tab.evaluate(WIDTHS)}
    assert widths["stage-decode"] > 3 * widths["stage-prefill"] > 3 * widths["stage-bound"] > 0
    colours = [colour for _, _, colour in visitor.tab.evaluate(WIDTHS)]
    assert len(set(colours)) == len(colours)
    assert "rgb(0, 0, 0)" not in colours
    assert "PREFILL 200 ms" in visitor.tab.get_attribute(".stage-bar", "aria-label")
    assert visitor.said == []


def test_the_list_of_requests_stays_where_it_is_on_ticks(visit, fleet):
    visitor = visit("viewer").go("/requests/?outcome=failed")
    visitor.tab.fill("main input[name=pool]", "half typed")
    visitor.tick()
    assert visitor.tab.input_value("main input[name=pool]") == "half typed"
    assert visitor.tab.locator("main tbody tr").count() == 1
    assert visitor.said == []
