"""What reliability does: keep promises' books, judge alerts, silence, notify."""

from controlplane.reliability.services.budgets import book_budgets
from controlplane.reliability.services.slos import reset_slo, set_slo
from controlplane.reliability.services.windows import close_window, open_window

__all__ = ["book_budgets", "close_window", "open_window", "reset_slo", "set_slo"]
