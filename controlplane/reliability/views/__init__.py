"""Pages of promises, alerts and diagnoses."""
