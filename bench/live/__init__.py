"""`bin/bench load`: the arrivals and lengths of a real trace, sent as live traffic."""
