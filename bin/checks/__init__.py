"""What stands behind bin/test: stages, throw-away servers, and the list of what was skipped.

Standard library only, like `stack`: it runs before anything is installed.
"""
