"""Configuration of a node: reading, checks, differences, pool setup.

The verbs and the agent's reload call it. It reads configuration files and probes disks without changing them.
"""
