"""scheduling.k8s.io and policy: PriorityClasses, PodDisruptionBudgets, evictions.

Called through its rows. Pure.
"""
