"""Scheduling cycle: cache, decision for one pod, PreBind, pod conditions.

The scheduler's loop calls it. The cache is its only state.
"""
