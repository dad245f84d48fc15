"""Filter and Score plugins, named as kube-scheduler's.

The scheduling cycle calls them. Pure functions over the framework's data.
"""
