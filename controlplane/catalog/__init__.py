"""What can be served: models and their versions."""
