"""Decisions: pure functions over frozen dataclasses. No Django, I/O, clock or log in here."""
