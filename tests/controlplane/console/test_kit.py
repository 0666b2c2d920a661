"""The kit of every page: how figures read, chips, roles, one load for many, safe CSV."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from django.conf import settings
from django.template.loader import render_to_string

from controlplane.console import actions, nav, quantities
from controlplane.console.listing import attribute, safe
from controlplane.console.mixins import digest, includes, refusal
from controlplane.console.templatetags.console import change_words, chip, in_billions, term
from controlplane.console.widgets import Number
from controlplane.domain import amounts
from controlplane.telemetry.cache import FlightCache


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "0 ms"),
        (0.0004, "0.40 ms"),
        (0.2874, "287 ms"),
        (1.236, "1.24 s"),
        (30, "30 s"),
        (200, "3 m 20 s"),
        (60, "1 m"),
        (3600, "1 h"),
        (7500, "2 h 5 m"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations_read_with_three_digits(value, text):
    assert quantities.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "0 %"),
        (0.0001, "< 0.05 %"),
        (0.044, "4.4 %"),
        (0.634, "63 %"),
        (1, "100 %"),
    ],
)
def test_ratios_read_as_percent(value, text):
    assert quantities.percent(value) == text


def test_one_thing_is_not_told_in_the_plural():
    told = [amounts.counted(n, "replicas") for n in (0, 1, 2)]
    assert told == ["0 replicas", "1 replica", "2 replicas"]
    assert quantities.figure(1.0, "pools") == "1 pool"
    assert quantities.given(1, "pools") == "1 pool"
    assert quantities.figure(1.0, "requests/s") == "1 request/s"
    assert quantities.counted(None, "tokens") == "— tokens"
    assert amounts.counted(1_234_567, "tokens") == "1234567 tokens"
    assert amounts.counted(1.5, "tokens") == "1.5 tokens"
    assert amounts.noun_of(1, "ms") == "ms"


# A number in a template, then a word in the plural: `|counted` or `|pluralize` is what agrees.
COUNT_AND_NOUN = re.compile(
    r"(?:count|length|total|agents|attempts|days|replicas|m)(?:\|count|\|length)? ?}} "
    r"(?:agents|alerts|attempts|blocks|candidates|characters|changes|days|errors|events|keys|"
    r"nodes|pools|problems|prompts|replicas|requests|streams|tenants|times|tokens|versions)\b"
)


def test_no_template_puts_a_plural_after_a_number_that_may_be_one():
    found = [
        f"{path.name}: {match[0]}"
        for path in Path(settings.BASE_DIR, "templates").rglob("*.html")
        for match in COUNT_AND_NOUN.finditer(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("value", "text"), [(None, "—"), (512, "512 B"), (44_237_000_000, "41.2 GiB")]
)
def test_sizes_read_in_binary_units(value, text):
    assert quantities.size(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "—"), (3.14159, "3.14"), (2150, "2\u202f150")])
def test_numbers_are_grouped(value, text):
    assert quantities.count(value) == text


@pytest.mark.parametrize(("value", "text"), [(None, "—"), (7.6e9, "7.60 B"), (568e6, "568 M")])
def test_parameters_read_in_billions(value, text):
    assert in_billions(value) == text


def test_a_figure_reads_in_its_unit():
    assert quantities.figure(0.5, "ratio") == "50 %"
    assert quantities.figure(2048, "bytes") == "2 KiB"
    assert quantities.figure(12.4, "requests/s") == "12.4 requests/s"
    assert quantities.figure(None, "requests/s") == "—"


def test_a_chip_has_shape_word_and_tone_and_an_unknown_code_is_text():
    assert "✓" in chip("ready")
    assert "healthy" in chip("ready")
    assert (
        chip("<b>")
        == '<span class="chip unknown"><span aria-hidden="true">?</span> &lt;b&gt;</span>'
    )


@pytest.mark.parametrize(
    ("role", "wanted", "allowed"),
    [
        ("viewer", "viewer", True),
        ("viewer", "operator", False),
        ("admin", "operator", True),
        ("", "viewer", False),
        ("root", "viewer", False),
    ],
)
def test_each_role_includes_those_before_it(role, wanted, allowed):
    assert includes(role, wanted) is allowed


@pytest.mark.parametrize(
    ("wanted", "address"),
    [
        ("/pools/chat/?page=2", "/pools/chat/?page=2"),
        ("", "/pools/"),
        ("true", "/pools/"),
        ("overview", "/pools/"),
        ("//evil.example/", "/pools/"),
        ("https://evil.example/", "/pools/"),
        ("/\\evil.example", "/pools/"),
    ],
)
def test_an_action_returns_to_a_path_of_our_own(rf, wanted, address):
    assert actions.return_address(rf.post("/", {"next": wanted}), "/pools/") == address


@pytest.mark.parametrize(
    ("text", "version"), [("7", 7), ("", None), ("-1", None), ("²", None), ("9" * 5000, None)]
)
def test_a_version_that_no_form_had_is_none(rf, text, version):
    assert actions.expected_version(rf.post("/", {"expected_version": text})) == version


def test_a_fresh_form_token_is_no_change_of_a_fragment():
    one = '<input type="hidden" name="csrfmiddlewaretoken" value="aaa"><p>x</p>'
    assert digest(one) == digest(one.replace("aaa", "bbb"))
    assert digest(one) != digest(one.replace("<p>x", "<p>y"))


class Event:
    def __init__(self, before, after):
        self.before, self.after = before, after


def test_a_term_is_told_with_the_unit_of_its_name():
    told = [term("wait_s", 0.12), term("prefill_tokens_per_s", 4300.0), term("hit_dial", None)]
    assert told == ["wait 120 ms", "prefill tokens 4\u202f300/s", "hit dial —"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (None, {"a": 1}, "created"),
        ({"a": 1}, None, "removed"),
        ([1], [2], "changed"),
        ({"a": 1}, {"a": 2}, "a: 1 → 2"),
        ({"a": None}, {"a": "ü"}, "a: none → ü"),
        ({"a": True}, {"a": False}, "a: on → off"),
        ({"a": 1, "b": 1}, {"a": 2, "b": 2}, "a, b"),
        ({"a": 1}, {"a": 1}, "no difference"),
    ],
)
def test_a_change_is_told_in_a_few_words(before, after, words):
    assert change_words(Event(before, after)) == words


@pytest.mark.parametrize(
    ("value", "text"), [(300.0, "300"), (33.3, "33.3"), (0.0001, "0.0001"), (7, "7"), (None, None)]
)
def test_an_input_shows_a_number_as_people_write_it(value, text):
    assert Number().format_value(value) == text


def test_paths_of_attributes_end_at_none():
    assert attribute(Event(None, 1), "before.anything.more") is None


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\tx"])
def test_formulas_are_text_in_a_spreadsheet(text):
    assert safe(text) == f"'{text}"


def test_a_value_is_loaded_once_for_all_who_ask_meanwhile():
    cache, entered, leave, loads = (
        FlightCache(max_entries=2, ttl_s=60),
        threading.Event(),
        threading.Event(),
        [],
    )

    def load():
        loads.append(1)
        entered.set()
        leave.wait(10)
        return "value"

    found = []
    readers = [
        threading.Thread(target=lambda: found.append(cache.get("k", load))) for _ in range(5)
    ]
    for reader in readers:
        reader.start()
    entered.wait(10)
    leave.set()
    for reader in readers:
        reader.join()
    assert (found, loads) == (["value"] * 5, [1])


def test_the_cache_forgets_the_oldest_and_the_late():
    now = [0.0]
    cache = FlightCache(max_entries=2, ttl_s=5, clock=lambda: now[0])
    for key in "abc":
        cache.get(key, lambda key=key: key)
    assert cache.get("a", lambda: "again") == "again"
    now[0] = 9
    assert cache.get("a", lambda: "later") == "later"


def test_a_load_that_fails_is_tried_again_by_the_next():
    cache = FlightCache(max_entries=2, ttl_s=5)
    with pytest.raises(ZeroDivisionError):
        cache.get("k", lambda: 1 / 0)
    assert cache.get("k", lambda: 2) == 2


@pytest.mark.parametrize(
    ("value", "text"), [(15, "15 s"), (60, "1 min"), (600, "10 min"), (10800, "3 h"), (90, "90 s")]
)
def test_stretches_of_time_read_without_empty_parts(value, text):
    assert quantities.span(value) == text


@pytest.mark.parametrize("menu", [nav.MENU, nav.AREA_MENU], ids=["console", "area"])
def test_every_entry_of_a_menu_has_a_key_and_a_name_of_its_own(menu):
    for said in ("key", "name", "label"):
        told = [getattr(entry, said) for entry in menu]
        assert sorted(set(told)) == sorted(told)
    assert all(len(entry.key) == 1 and entry.key.isalnum() for entry in menu)


def test_who_is_no_staff_is_told_so_and_staff_which_role_is_wanted():
    assert "staff of Signalbox" in refusal("", "viewer")
    assert "needs the role operator; yours is viewer" in refusal("viewer", "operator")


def test_the_page_of_a_failure_has_the_console_s_style_though_nothing_else_works():
    assert 'href="/static/console/app.css"' in render_to_string("500.html")
