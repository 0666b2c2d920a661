"""Every page in a real browser: silent, from our own origin, accessible in light and dark."""

from __future__ import annotations

import re

import pytest

from tests.console.conftest import AXE

pytestmark = [
    pytest.mark.browser,
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(600),  # a walk over all pages on a busy machine
]

AXE_RUN = """async (rules) => {
  const found = await axe.run(document, {resultTypes: ["violations"], ...rules});
  return found.violations
    .filter(v => ["serious", "critical"].includes(v.impact))
    .map(v => `${v.id}: ${v.nodes.slice(0, 3).map(n => n.html.slice(0, 120)).join(" | ")}`);
}"""


# One walk for what can be asked of a page while it stands there: each costs a minute.
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
ALL_IN_REACH = """[...document.querySelectorAll(".table-wrap")].every(
    w => w.scrollWidth <= w.clientWidth || w.tabIndex >= 0)"""  # by keyboard, once it scrolls
ALL_IN_SIGHT = """[...document.querySelectorAll(".table-wrap")].every(
    w => w.scrollWidth <= w.clientWidth)"""


def test_no_page_says_a_word_leaves_its_origin_or_is_wider_than_a_narrow_screen(visit, pages):
    visitor = visit("admin")
    for path in pages:
        visitor.tab.set_viewport_size({"width": 1440, "height": 900})
        visitor.go(path)
        visitor.tick()
        visitor.tick()
        assert visitor.said == [], path
        visitor.tab.set_viewport_size({"width": 1280, "height": 900})
        visitor.until(ALL_IN_SIGHT)
        visitor.tab.set_viewport_size({"width": 420, "height": 800})
        visitor.until(f"!({TOO_WIDE})")
        visitor.until(ALL_IN_REACH)
    outside = [u for u in visitor.asked if not u.startswith((visitor.origin, "data:"))]
    assert outside == []


# Structure is the same in both: the second look is at colours only.
LOOKS = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}


@pytest.mark.slow
def test_axe_finds_nothing_serious_in_light_and_dark(visit, pages):
    visitor = visit("admin", bypass_csp=True, reduced_motion="reduce")  # axe is put into the page
    found = {}
    for path in pages:
        visitor.go(path)
        visitor.tab.add_script_tag(path=str(AXE))
        for scheme, rules in LOOKS.items():
            visitor.tab.emulate_media(color_scheme=scheme)
            problems = visitor.tab.evaluate(AXE_RUN, rules)
            if problems:
                found[path, scheme] = problems
    assert found == {}


def test_charts_are_drawn_with_their_words_and_their_numbers(visit, fleet):
    visitor = visit("viewer").go("/pools/chat/")
    chart = visitor.tab.locator("#chart-ttft")
    assert chart.locator("svg.main-svg").first.is_visible()
    assert "p95" in chart.locator(".draw").get_attribute("aria-label")
    assert "recent store" in chart.inner_text()
    chart.locator("summary").click()
    assert chart.locator("tbody tr").count() > 10
    for name in ("ttft", "requests", "kv"):
        box = visitor.tab.locator(f"#chart-{name} .draw").bounding_box()
        for share in (0.3, 0.6, 0.9):
            visitor.tab.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
            visitor.tab.wait_for_timeout(60)
    assert visitor.said == []


def test_a_pool_without_data_says_so_beside_one_that_has(visit, fleet):
    visitor = visit("viewer").go("/pools/embed/")
    chart = visitor.tab.locator("#chart-ttft")
    assert chart.get_attribute("data-state") == "none"
    assert "Nothing was reported" in chart.inner_text()


def test_the_tab_tells_how_many_problems_there_are(visit, fleet):
    visitor = visit("viewer").go("/")
    visitor.until("document.title.startsWith('(')")
    assert "icon-bad" in visitor.tab.locator("link[rel=icon]").get_attribute("href")
    assert "need attention" in visitor.tab.locator("#announcements").text_content()


FREE_TEXT = re.compile(
    r"reason|note|message|description|owner|zone|hostname|detail|error|prompt|actor|_by$"
    r"|(engine|driver|cuda)_version|base_name|model_source"
)
NASTY = '<img src=x onerror=alert(1)><a href="javascript:alert(1)">x</a><b>x</b>'


def write_markup_everywhere() -> None:
    """Put markup into every text that people, agents and engines write freely."""
    from django.apps import apps
    from django.db.models import CharField, TextField

    from controlplane.tenants.models import Tenant

    for kept in apps.get_models():
        texts = {
            f.name: NASTY[: f.max_length]
            for f in kept._meta.fields
            if isinstance(f, CharField | TextField) and not f.choices and FREE_TEXT.search(f.name)
        }
        if kept.__module__.startswith("controlplane.") and texts:
            kept._base_manager.update(**texts)
    Tenant.objects.update(name=NASTY)


def test_markup_in_names_stays_text_everywhere(visit, fleet, pages):
    write_markup_everywhere()
    visitor = visit("admin")
    for path in pages:
        visitor.go(path)
        assert visitor.tab.locator("main img, a[href^=javascript]").count() == 0, path
    assert visitor.said == []


def test_a_viewer_sees_no_button_that_would_fail(visit, fleet, pages):
    visitor = visit("viewer")
    for path in ("/", "/pools/chat/", f"/replicas/{fleet.ready.public_id}/", "/routing/",
                 "/tenants/acme/"):  # fmt: skip
        visitor.go(path)
        forms = visitor.tab.locator("main form[method=post]").count()
        assert forms == 0, path
        assert visitor.tab.locator("main details.confirm, main a.button[hx-get]").count() == 0


def test_the_first_page_is_light(visit, fleet):
    """At most 600 kB over the wire, compressed as whitenoise serves it."""
    import gzip

    visitor = visit("viewer")
    bodies = []
    visitor.tab.on("response", lambda r: bodies.append(r))
    visitor.go("/pools/chat/")
    total = sum(len(gzip.compress(r.body())) for r in bodies if r.status == 200)
    assert total < 600_000, total
