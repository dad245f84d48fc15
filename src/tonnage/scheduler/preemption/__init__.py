"""Preemption and starvation: victims of a pod, and reserved capacity.

Called where no node fits. It simulates on the cache; the loop writes the evictions.
"""
