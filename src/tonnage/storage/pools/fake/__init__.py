"""The fake pool: it counts volumes, enforces no size, and its volumes end with the process.

Called through the Pool. It may touch the staging and target paths that it is given, as plain directories.
"""
