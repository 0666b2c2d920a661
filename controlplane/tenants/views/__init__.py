"""Pages of tenants: staff see them all, members their own area at `/t/<slug>/`."""
