"""What happens to a fleet that a policy must live through: each replayed, with its chart."""
