"""What every app's `api.py` is built on: strict input, and one way to carry out a change.

It lies below the apps. What needs the apps above (who observed a revision, which answers were given
before) is handed in by `controlplane.api` at start: see `views.Shell`.
"""
