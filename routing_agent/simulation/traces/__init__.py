"""Traces of real traffic: their formats, read into one shape."""
