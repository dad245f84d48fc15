"""Preemption and starvation: which pods to evict for a pod of higher priority, and whom to let wait.

Called where no node fits. It simulates on the cache; the loop writes the evictions.
"""
