"""Which table each agent runs: epochs, deliveries, reports."""
