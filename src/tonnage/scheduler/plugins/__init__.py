"""Filter and Score plugins, named as kube-scheduler's where they do the same.

The scheduling cycle calls them. Pure functions over the framework's data."""
