"""The text parser: only the wanted names, every spelling of labels, nothing that is no number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing_agent.engine.prometheus import Reader


def read(text, *names):
    return Reader(names or ("m",)).read(text)


def values(text, name="m"):
    return [s.value for s in read(text, name).samples(name)]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("m 1", 1.0),
        ("m 1.0931263819e+10", 10931263819.0),
        ("m{} 2", 2.0),
        ('m{a="b"} 3 1700000000000', 3.0),
        ('m {a="b",} 4', 4.0),
        ('m{a="x}y"} 5', 5.0),
        ("m{a=\"{'method': 'prefill'}\"} 6", 6.0),
        ('m{a="say \\"}\\" 9"} 7', 7.0),
        ('m{a="b"} 8 # {trace_id="x"} 0.5', 8.0),
        ("m\t9", 9.0),
        ("m -1", -1.0),
    ],
)
def test_a_sample_is_read_however_it_is_written(line, value):
    assert values(line) == [value]


@pytest.mark.parametrize(
    "line",
    ["m NaN", "m +Inf", "m -Inf", "m one", "m", "# m 1", "m_created 1", "om 1", 'm{a="b 1', " m 1"],
)
def test_what_is_no_sample_of_this_name_is_passed_over(line):
    assert values(line) == []


def test_names_that_begin_alike_are_kept_apart():
    found = read("tokens_total 5\ntokens 3\ntokens_total_created 1.7e9\n", "tokens", "tokens_total")
    assert found.total("tokens_total") == 5
    assert found.total("tokens") == 3


def test_labels_are_unescaped():
    sample = read('m{path="a\\\\b",quote="\\"",line="x\\ny"} 1').samples("m")[0]
    assert sample.labels == {"path": "a\\b", "quote": '"', "line": "x\ny"}


def test_the_first_name_that_is_there_counts_and_absence_is_none():
    found = read("old 1\nnew 2\n", "new", "old", "never")
    assert found.total("new", "old") == 2
    assert found.total("never", "old") == 1
    assert found.total("never") is None
    assert found.mean("never") is None


def test_series_of_several_engines_add_up_or_average():
    found = read('m{engine="0"} 1\nm{engine="1"} 3\n')
    assert (found.total("m"), found.mean("m")) == (4, 2)


def test_a_negative_level_is_how_an_engine_says_switched_off():
    assert read("m -1.0").total("m") is None
    assert read("m 1\nm -1").mean("m") is None


@given(st.text())
def test_no_text_breaks_it(text):
    read(text)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.text(max_size=20)))
def test_any_labels_survive_the_way_there_and_back(labels):
    def escaped(value):
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    text = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
    assert read(f"m{{{text}}} 1\n").samples("m")[0].labels == labels
