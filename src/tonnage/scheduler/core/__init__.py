"""The scheduling cycle: the cache, one pod's decision, the writes before binding, pod conditions.

Called by the scheduler's loop. The cache is its only state.
"""
