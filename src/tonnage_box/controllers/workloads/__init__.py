"""Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs and disruption budgets.

Called by the box, on demand: a controller starts with the first object of its kind. Plans are pure functions; the
controllers write through the API.
"""
