"""Who may use what: tenants, their API keys, staff roles and tokens."""
