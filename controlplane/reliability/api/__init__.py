"""REST: promises and budgets, maintenance, alerts, silences, webhooks, diagnoses."""
