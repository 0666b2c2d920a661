"""Console pages of the fleet."""
