"""What stands behind bin/up, bin/down and bin/status: the local stack, standard library only.

It must run before anything is installed, so nothing here imports a package from requirements.txt.
"""
