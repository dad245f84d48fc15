"""Scheduling core: cache, cycle that runs the plugins, PreBind and Bind, pod conditions.

The scheduler's loop calls it. The cache keeps the state and emits events.
"""
