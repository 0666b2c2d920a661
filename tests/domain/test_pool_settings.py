"""Pool settings: one description for all, faults named with what is allowed."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain import pool_settings
from controlplane.domain.errors import Invalid
from controlplane.domain.pool_setting_texts import TEXTS
from routing_agent.wire import PoolSettings


def test_every_setting_of_the_wire_is_described_once_in_its_order():
    names = [field.name for field in msgspec.structs.fields(PoolSettings)]
    assert list(pool_settings.SETTINGS) == names
    assert set(TEXTS) == set(names)


def test_a_description_says_what_is_allowed_and_the_default():
    settings = pool_settings.SETTINGS
    assert settings["policy"].choices[0] == "cache_aware"
    assert settings["policy"].allowed.startswith("one of cache_aware, consistent_hash")
    assert settings["max_retries"].allowed == "a whole number from 0 to 5"
    assert settings["drain_limit_s"].allowed == "a number above 0, at most 1800"
    assert settings["profile_blocks"].allowed == "a whole number of at least 0, or empty"
    assert settings["extra_paths"].kind == "list"
    assert settings["ttft_limit_s"].default == 30.0


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("nope", 1, "There is no pool setting 'nope'"),
        ("max_retries", 9, "max_retries must be a whole number from 0 to 5, not 9."),
        ("max_retries", "2", "a whole number from 0 to 5, not '2'"),
        ("ttft_limit_s", 0, "ttft_limit_s must be a number above 0, not 0."),
        ("ttft_limit_s", math.inf, "a number above 0, not inf"),
        ("policy", "best", "policy must be one of"),
        ("extra_paths", ["/v1/load_lora_adapter"], "may not contain '/v1/load_lora_adapter'"),
        ("extra_paths", ["v1/x"], "must be a plain absolute path"),
    ],
)
def test_a_fault_names_the_setting_and_what_is_allowed(name, value, told):
    with pytest.raises(Invalid) as caught:
        pool_settings.resolved({name: value})
    assert told in caught.value.message
    assert (caught.value.field, caught.value.code) == (f"settings.{name}", "invalid_setting")


@pytest.mark.parametrize(
    "overrides",
    [
        {"kv_soft_usage": 0.99},
        {"scrape_interval_s": 6},
        {"scrape_dead_s": 4},
    ],
)
def test_limits_that_contradict_each_other_are_refused(overrides):
    with pytest.raises(Invalid, match="must not exceed"):
        pool_settings.resolved(overrides)


def test_good_overrides_are_applied_and_the_rest_are_defaults():
    settings = pool_settings.resolved({"max_retries": 0, "extra_paths": ["/v1/audio/speech"]})
    assert (settings.max_retries, settings.extra_paths) == (0, ("/v1/audio/speech",))
    assert settings.ttft_limit_s == 30.0


def test_as_far_as_possible_keeps_the_good_ones_and_tells_of_the_others():
    settings, faults = pool_settings.resolved_as_far_as_possible({"max_retries": 1, "nope": 1})
    assert settings.max_retries == 1
    assert len(faults) == 1
    settings, faults = pool_settings.resolved_as_far_as_possible(
        {"max_retries": 1, "kv_soft_usage": 1.0}
    )
    assert settings == PoolSettings()
    assert "All settings are at their defaults" in faults[0]


def test_only_what_differs_from_the_defaults_is_kept():
    given_values = {"max_retries": 2, "ttft_limit_s": 10.0, "unknown": 1}
    assert pool_settings.overrides_of(given_values) == {"ttft_limit_s": 10.0, "unknown": 1}


def test_an_end_to_end_limit_below_ttft_and_generation_is_warned_of():
    assert pool_settings.warnings(PoolSettings()) == ()
    short = PoolSettings(end_to_end_limit_s=60.0)
    assert "Set it to at least 65 s" in pool_settings.warnings(short)[0]
    assert pool_settings.warnings(short, expected_generation_s=20.0) == ()


def test_a_probe_that_outlasts_its_interval_is_warned_of():
    (told,) = pool_settings.warnings(PoolSettings(probe_timeout_s=9.0))
    assert "probe_timeout_s (9 s)" in told


@given(st.dictionaries(st.sampled_from([*TEXTS, "nope"]), st.none() | st.integers() | st.text()))
def test_whatever_is_asked_the_answer_is_settings_or_a_named_fault(overrides):
    try:
        settings = pool_settings.resolved(overrides)
    except Invalid as error:
        told = error.field or ""
    else:
        told = "settings."
        assert msgspec.convert(msgspec.to_builtins(settings), PoolSettings) == settings
    assert told.startswith("settings.")
