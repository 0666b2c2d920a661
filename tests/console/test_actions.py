"""Actions by hand: a second click that states its effect, before and after, a key shown once."""

from __future__ import annotations

import pytest

from controlplane.audit.models import AuditEvent
from controlplane.fleet.models import Agent, Pool, Replica
from controlplane.routing import selectors, services
from controlplane.tenants.models import ApiKey

pytestmark = [pytest.mark.browser, pytest.mark.redis, pytest.mark.django_db(transaction=True)]


def agents_obey() -> None:
    """Publish, and let the agent report that it runs the newest table."""
    services.publish_if_behind()
    publication = selectors.publication()
    Agent.objects.update(
        applied_revision=publication.published_revision, reported_lineage=publication.lineage
    )


def test_a_drain_is_confirmed_done_and_followed_to_the_agents(visit, fleet):
    visitor = visit().go("/pools/chat/")
    tab, name = visitor.tab, fleet.ready.public_id
    tab.click(f"#drain-{name} > summary")
    assert "Pool chat keeps 1 ready." in visitor.text(f"#drain-{name} form")
    assert Replica.objects.get(pk=fleet.ready.pk).state == "ready"
    tab.fill(f"#drain-{name} input[name=reason]", "driver update")
    tab.click(f"#drain-{name} button:has-text('Drain replica')")
    tab.wait_for_selector(f"#replica-{name} .chip:has-text('draining')")
    tab.wait_for_selector(".toast :text('observed by 0 of 1'), .toast :text('not published')")
    agents_obey()
    tab.wait_for_selector(".toast :text('observed by 1 of 1 agent')")
    assert AuditEvent.objects.filter(verb="replica.drain", reason="driver update").exists()
    tab.click(".toast [data-dismiss]")
    assert tab.locator(".toast").count() == 0
    assert visitor.said == []


def test_keep_as_is_changes_nothing(visit, fleet):
    visitor = visit().go("/pools/chat/")
    tab, name = visitor.tab, fleet.ready.public_id
    tab.click(f"#eject-{name} > summary")
    tab.click(f"#eject-{name} button:has-text('Keep as is')")
    assert tab.locator(f"#eject-{name}").get_attribute("open") is None
    assert Replica.objects.get(pk=fleet.ready.pk).state == "ready"


def test_draining_works_without_javascript(visit, fleet):
    visitor = visit(java_script_enabled=False)
    tab, name = visitor.tab, fleet.ready.public_id
    tab.goto(visitor.origin + "/pools/chat/")
    tab.click(f"#drain-{name} > summary")
    tab.click(f"#drain-{name} button:has-text('Drain replica')")
    assert "Drain of" in tab.inner_text(".toasts")
    assert Replica.objects.get(pk=fleet.ready.pk).state == "draining"


def test_an_ejected_replica_is_restored(visit, fleet):
    visitor = visit().go(f"/replicas/{fleet.ejected.public_id}/")
    tab, name = visitor.tab, fleet.ejected.public_id
    tab.click(f"#restore-{name} > summary")
    tab.click(f"#restore-{name} button:has-text('Restore replica')")
    tab.wait_for_selector(".sub .chip:has-text('ready')")


def test_a_policy_changes_in_a_dialog_by_before_and_after_with_a_reason(visit, fleet):
    visitor = visit().go("/pools/chat/")
    tab = visitor.tab
    tab.click("text=Change policy")
    tab.wait_for_selector("#dialog[open] select[name=setting-policy]")
    tab.select_option("select[name=setting-policy]", "round_robin")
    tab.click("text=Review change")
    tab.wait_for_selector("#dialog table.diff")
    assert "expected_ttft" in visitor.text("#dialog table.diff")
    assert "round_robin" in visitor.text("#dialog table.diff")
    assert tab.evaluate("document.activeElement.textContent") == "Cancel"
    tab.fill("#dialog input[name=reason]", "even load wanted")
    tab.click("#dialog button:has-text('Change policy')")
    tab.wait_for_selector(".toast :text('Policy of pool chat changed.')")
    assert Pool.objects.get(slug="chat").settings == {"policy": "round_robin"}
    agents_obey()
    tab.wait_for_selector(".toast :text('observed by 1 of 1 agent')")
    assert visitor.said == []


def test_a_policy_changed_meanwhile_is_refused_in_the_dialog(visit, fleet):
    visitor = visit().go("/pools/chat/")
    tab = visitor.tab
    tab.click("text=Change policy")
    tab.wait_for_selector("#dialog[open] select[name=setting-policy]")
    Pool.objects.filter(slug="chat").update(version=9)
    tab.select_option("select[name=setting-policy]", "round_robin")
    tab.click("text=Review change")
    tab.wait_for_selector("#dialog table.diff")
    tab.fill("#dialog input[name=reason]", "x")
    tab.click("#dialog button:has-text('Change policy')")
    tab.wait_for_selector("#dialog .problem-box")
    assert Pool.objects.get(slug="chat").settings == {}


def test_cancelling_the_dialog_changes_nothing_and_stays_on_the_page(visit, fleet):
    visitor = visit().go("/pools/chat/")
    tab = visitor.tab
    tab.click("text=Change policy")
    tab.wait_for_selector("#dialog[open]")
    tab.click("#dialog >> text=Cancel")
    assert not tab.locator("#dialog").is_visible()
    assert tab.url.endswith("/pools/chat/")


def test_a_key_is_issued_shown_once_and_revoked_by_its_name(visit, fleet):
    visitor = visit().go("/tenants/acme/")
    tab = visitor.tab
    tab.click("text=Issue key")
    tab.fill("#dialog input[name=name]", "batch")
    tab.fill("#dialog input[name=reason]", "nightly jobs")
    tab.click("#dialog button:has-text('Issue key')")
    text = tab.text_content("#new-key")
    assert text.startswith("sbx-")
    tab.click("text=I have it")
    tab.wait_for_selector("td:has-text('batch')")
    assert text not in tab.content()

    key = ApiKey.objects.get(name="batch")
    tab.click(f"#key-{key.public_id} >> text=Revoke")
    tab.fill("#dialog input[name=typed]", "wrong")
    tab.fill("#dialog input[name=reason]", "leaked")
    tab.click("#dialog button:has-text('Revoke key for good')")
    tab.wait_for_selector("#dialog .problem-box")
    tab.fill("#dialog input[name=typed]", "batch")
    tab.fill("#dialog input[name=reason]", "leaked")
    tab.click("#dialog button:has-text('Revoke key for good')")
    tab.wait_for_selector(f"#key-{key.public_id} .chip:has-text('revoked')")
    key.refresh_from_db()
    assert key.revoked_at is not None
    assert visitor.said == []


def test_republishing_asks_for_a_reason_and_is_followed(visit, fleet):
    visitor = visit().go("/routing/")
    tab = visitor.tab
    tab.click("text=Republish")
    tab.fill("#dialog input[name=reason]", "after maintenance")
    tab.click("#dialog button:has-text('Republish table')")
    tab.wait_for_selector(".toast :text('published anew')")
    assert selectors.current_epoch() == fleet.epoch + 1
