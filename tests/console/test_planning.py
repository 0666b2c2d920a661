"""The planner in a browser: a form that needs no script, and a plan that is a link."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("script", [True, False])
def test_a_plan_is_made_by_filling_the_form_in_with_script_and_without(visit, fleet, script):
    visitor = visit("viewer", java_script_enabled=script)
    tab = visitor.tab
    tab.goto(f"{visitor.origin}/planning/")
    tab.get_by_label("Peak (requests/s)").fill("200")
    tab.get_by_label("Productivity of a replica (requests/s)").fill("50")
    tab.get_by_label("Model", exact=True).select_option("qwen2.5-7b")
    tab.get_by_label("Context length (tokens)").fill("8192")
    tab.get_by_role("button", name="Calculate").click()
    tab.locator("#step-replicas").wait_for()
    assert "6 replicas" in tab.inner_text("#step-replicas")
    assert "448 MiB" in tab.inner_text("#step-kv_per_request")
    assert "for want of KV cache of a replica" in tab.inner_text("#step-concurrency")
    tab.goto(tab.url)
    assert "6 replicas" in tab.inner_text("#step-replicas")
    assert visitor.said == []


def test_a_problem_leads_to_the_field_it_is_about(visit, fleet):
    visitor = visit("viewer").go("/planning/?model=qwen2.5-32b&gpu=l4")
    visitor.tab.locator(".problem-box a").click()
    assert visitor.tab.url.endswith("#id_gpus_per_replica")
    assert "does not fit" in visitor.text(".problem-box")
