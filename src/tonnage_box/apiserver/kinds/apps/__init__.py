"""apps: Deployments, ReplicaSets, StatefulSets, DaemonSets, ControllerRevisions.

Called through its rows; batch and policy use its rules of selectors and shares. Pure.
"""
