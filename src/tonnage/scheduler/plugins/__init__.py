"""Filter and Score plugins, by the names of kube-scheduler's where they do the same.

Called by the scheduling cycle. Pure functions over the framework's data.
"""
