"""The planner's page: a link is a plan; what is missing and what is wrong is said where it is."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.controlplane.staff import signed_in

pytestmark = pytest.mark.django_db

QWEN = "model=qwen2.5-7b&gpu=a100-80gb&context_tokens=8192"


def page(query="", client=None):
    response = (client or signed_in("viewer")).get(f"/planning/?{query}")
    assert response.status_code == 200
    return response.content.decode()


def test_the_empty_page_shows_the_defaults_and_no_result():
    body = page()
    assert 'placeholder="0.3"' in body
    assert "Step by step" not in body
    assert "problem-box" not in body


def test_every_step_shows_formula_numbers_result_and_reason():
    body = page(f"{QWEN}&peak_requests_per_s=200&replica_requests_per_s=50")
    assert "6 replicas carry 200 requests/s with 30 % to spare." in body
    assert "⌈200 / 50 × 1.3⌉ = ⌈5.2⌉" in body
    assert "448 MiB" in body
    assert "10\u202f950 USD/month" in body
    assert "Qwen/Qwen2.5-7B-Instruct config.json" in body


def test_large_numbers_may_be_written_short():
    assert "14.2 GiB" in page("parameters=7.6e9")


def test_a_pools_peak_stands_with_its_age_and_one_without_with_the_reason(pool, roll_up):
    viewer = signed_in("viewer")
    assert "Not known: nothing was reported of pool chat in 90 days." in page("pool=chat", viewer)
    at = roll_up(21.0, ago=timedelta(hours=3))
    body = page("pool=chat", viewer)
    assert f'datetime="{at.isoformat(timespec="seconds")}"' in body
    assert "busiest 5 s of pool chat" in body
    assert 'placeholder="21"' in body


def test_zero_is_shown_as_zero_and_unknown_as_a_dash(pool, roll_up):
    roll_up(0.0, ago=timedelta(hours=3))
    viewer = signed_in("viewer")
    body = page("pool=chat&replica_requests_per_s=5", viewer)
    assert "0 replicas" in body
    assert "No load needs no replica" in body
    body = page("peak_requests_per_s=1&replica_requests_per_s=1", viewer)
    assert "Not calculated, for want of parameters." in body


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("model=qwen2.5-32b&gpu=l4", "The model does not fit"),
        ("model=qwen2.5-7b&layers=3", "Layers is entered as 3"),
        ("layers=many", "Enter a number."),
        ("model=gpt-9", "gpt-9 is not one of the available choices"),
        ("pool=nowhere", "nowhere is not one of the available choices"),
        ("buffer_ratio=", "Nothing can be calculated from this."),
        ("buffer_ratio=nan", "Enter a number."),
    ],
)
def test_bad_input_is_named_and_nothing_is_calculated(query, told):
    body = page(query)
    assert told in body
    assert "problem-box" in body
    assert "Step by step" not in body


def test_what_was_typed_stays_typed():
    assert 'value="3.0"' in page("model=qwen2.5-7b&layers=3.0")


def test_people_without_a_role_are_turned_away():
    assert signed_in("").get("/planning/").status_code == 403
