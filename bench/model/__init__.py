"""`bin/bench model`: how far the engine model is off a live engine."""
