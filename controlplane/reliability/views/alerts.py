"""Alerts: what needs somebody now; acknowledge, silence, and who is told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from controlplane.audit.asking import Asking
from controlplane.audit.services import Actor
from controlplane.console import actions
from controlplane.console.listing import Sorting
from controlplane.console.mixins import Action, Page, back_to, in_dialog, requested
from controlplane.domain.alert_rules import BY_NAME, Rule, Scope, outranked
from controlplane.domain.alerts import State, amount, is_stale, silence_of
from controlplane.fleet import selectors as fleet
from controlplane.reliability import selectors, services
from controlplane.reliability.forms import SilenceForm, WebhookForm
from controlplane.reliability.models import Alert
from controlplane.reliability.outbound import origin
from controlplane.reliability.selectors.alerts import LATE

OVER_SHOWN = 20
SORTS = {
    name: name for name in ("severity", "title", "subject", "since", "fired_at", "resolved_at")
}
DELIVERIES_SHOWN = 15


def line(alert: Alert, silences: list[Any], firing: Iterable[Alert] = ()) -> dict[str, Any]:
    """Give one alert as the list shows it, beside those that fire."""
    rule = BY_NAME.get(alert.rule)
    unit = rule.unit if rule else ""
    return {
        "alert": alert,
        "title": rule.title if rule else alert.rule,
        "remedy": remedy(rule, alert, firing) if rule else "",
        "question": rule.question if rule and alert.pool else "",
        "value": amount(alert.value, unit),
        "limit": amount(alert.threshold, unit),
        "silence": silence_of(alert, silences, now=timezone.now()),
        "target": target_of(alert),
        "is_id": rule is not None and rule.scope is Scope.REPLICA,
        "is_stale": is_stale(alert.no_data_since, now=timezone.now()),
    }


def remedy(rule: Rule, alert: Alert, firing: Iterable[Alert]) -> str:
    """Say what to do, or why not now: what keeps a higher promise of the pool comes first."""
    rules = [BY_NAME[a.rule] for a in firing if a.pool == alert.pool and a.rule in BY_NAME]
    first = outranked(rule, rules)
    if first is None:
        return rule.remedy
    return f"Not now: “{first.title}” fires on the same pool and comes first."


def target_of(alert: Alert) -> str:
    """Give the address of the page of what an alert is about; empty where there is none."""
    rule = BY_NAME.get(alert.rule)
    scope = rule.scope.value if rule else ""
    if scope in {"pool", "replica", "node"}:
        return reverse(scope, args=[alert.subject])
    return reverse("system") if scope == "loop" else ""


class AlertPage(Page):
    """Firing first, then pending; rules with what they lack; silences; webhooks.

    An order that is asked for holds within each of the lists of alerts.
    """

    template_name = "reliability/alerts.html"
    fragment_name = "reliability/_alerts.html"
    nav_name = "alerts"
    title = "Alerts"
    api_path = "/api/v1/alerts/"

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """Gather alerts, rules, silences and messages."""
        silences = selectors.active_silences()
        sorting = Sorting.of(self.request.GET, SORTS)
        every = sorting.queryset(selectors.alerts(), SORTS)
        found = list(every.exclude(state=State.RESOLVED)[:200])
        over = Paginator(every.filter(state=State.RESOLVED), OVER_SHOWN)
        page = over.get_page(self.request.GET.get("page"))
        judged_at, rules = selectors.rule_lines()
        now = timezone.now()
        now_firing = [a for a in found if a.state == State.FIRING]
        lines = [line(a, silences, now_firing) for a in found]
        return super().get_context_data(
            firing=[e for e in lines if e["alert"].state == State.FIRING],
            pending=[e for e in lines if e["alert"].state == State.PENDING],
            sorting=sorting,
            page=page,
            over=[line(a, []) for a in page],
            silences=silences,
            rules=[_rule(r) for r in rules],
            judged_at=judged_at,
            is_late=judged_at is None or now - judged_at > LATE,
            webhooks=[(w, origin(w.url)) for w in selectors.webhooks()],
            deliveries=selectors.deliveries()[:DELIVERIES_SHOWN],
            **kwargs,
        )


def _rule(told: Any) -> dict[str, Any]:
    rule = told.rule
    limit = "the pool's objective"
    if rule.threshold is not None:
        limit = amount(rule.threshold, rule.unit)
    return {"told": told, "rule": rule, "limit": f"{rule.comparison} {limit}"}


class Acknowledge(Action):
    """Note that somebody looks after an alert."""

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Acknowledge it and go back."""
        actor = Actor(request.user.get_username())
        services.acknowledge_alert(
            pk=pk, actor=actor, reason=actions.reason(request, required=True)
        )
        requested(request, "Acknowledged. It fires until its cause is gone.")
        return back_to(request, actions.return_address(request, reverse("alerts")))


class SilenceCreate(Asking):
    """Keep alerts from being told."""

    title = "Silence alerts"
    explained = (
        "Nobody is told of these alerts until the time is over; this page still shows them. What"
        " fires then is told then."
    )
    button = "Silence"

    def form(self, data: Any, **address: Any) -> SilenceForm:
        """Give the form, with what was asked for."""
        asked = {name: self.request.GET.get(name, "") for name in ("rule", "pool")}
        return SilenceForm(data, pools=fleet.pool_names(), initial=asked)

    def change(self, form: SilenceForm, who: dict[str, Any], **address: Any) -> str:
        """Make it."""
        services.create_silence(**form.silence(), **who)
        return "Silenced."

    def back(self, **address: Any) -> str:
        """Go to the alerts."""
        return reverse("alerts")


class SilenceEnd(Action):
    """End a silence early."""

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """End it and go back."""
        actor = Actor(request.user.get_username())
        services.end_silence(pk=pk, actor=actor, reason=actions.reason(request))
        requested(request, "The silence is over: what fires is told now.")
        return back_to(request, reverse("alerts"))


class WebhookCreate(Asking):
    """Tell an address of alerts."""

    required_role = "admin"
    title = "Add a webhook"
    explained = (
        "It gets a signed message when an alert begins to fire and when it ends, tried again until"
        " it arrives. The secret of the signature is shown once, after this step."
    )
    button = "Add webhook"

    def form(self, data: Any, **address: Any) -> WebhookForm:
        """Give the form."""
        return WebhookForm(data, pools=fleet.pool_names())

    def post(self, request: HttpRequest, **address: Any) -> HttpResponse:
        """Make it, and show its secret this once."""
        answer = super().post(request, **address)
        made: services.CreatedWebhook | None = getattr(self, "made", None)
        if made is None:
            return answer
        context = {
            "layout": "dialog.html" if in_dialog(request) else "base.html",
            "nav_name": "alerts",
            "title": "Webhook added",
            "made": made,
        }
        response = render(request, "reliability/webhook_created.html", context)
        response["Cache-Control"] = "no-store"
        return response

    def change(self, form: WebhookForm, who: dict[str, Any], **address: Any) -> str:
        """Make it."""
        given = {n: form.cleaned_data[n] for n in ("name", "url", "pool", "only_critical")}
        self.made = services.create_webhook(**given, **who)
        return f"Webhook {self.made.webhook.name} added."

    def back(self, **address: Any) -> str:
        """Go to the alerts."""
        return reverse("alerts")


class WebhookTest(Action):
    """Send a test message."""

    required_role = "admin"

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Send it and go back, where its delivery is shown."""
        actor = Actor(request.user.get_username())
        services.test_webhook(name=name, actor=actor, reason=actions.reason(request))
        requested(request, "Test message on its way: see the list of messages.")
        return back_to(request, reverse("alerts") + "#messages-title")


class WebhookDelete(Action):
    """Remove a webhook."""

    required_role = "admin"

    def post(self, request: HttpRequest, name: str) -> HttpResponse:
        """Remove it and go back."""
        actor = Actor(request.user.get_username())
        services.delete_webhook(name=name, actor=actor, reason=actions.reason(request))
        requested(request, f"Webhook {name} removed.")
        return back_to(request, reverse("alerts"))
