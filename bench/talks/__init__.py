"""Conversations live through several routers, one after the other: what each finds cached."""
