"""What reliability does: keep promises' books, judge alerts, silence, notify."""

from controlplane.reliability.services.alerts import acknowledge_alert, judge_alerts
from controlplane.reliability.services.budgets import book_budgets
from controlplane.reliability.services.deliveries import deliver_messages
from controlplane.reliability.services.silences import create_silence, end_silence
from controlplane.reliability.services.slos import reset_slo, set_slo
from controlplane.reliability.services.webhooks import (
    CreatedWebhook,
    create_webhook,
    delete_webhook,
    test_webhook,
    update_webhook,
)
from controlplane.reliability.services.windows import close_window, open_window

__all__ = [
    "CreatedWebhook",
    "acknowledge_alert",
    "book_budgets",
    "close_window",
    "create_silence",
    "create_webhook",
    "delete_webhook",
    "deliver_messages",
    "end_silence",
    "judge_alerts",
    "open_window",
    "reset_slo",
    "set_slo",
    "test_webhook",
    "update_webhook",
]
