"""Configuration of a node: reads and checks it, compares it with the running one, and opens pools.

Called by the verbs and by the agent's reload. It reads configuration files and probes disks without changing them.
"""
