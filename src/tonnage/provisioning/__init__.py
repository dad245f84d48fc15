"""Rules that programs share: claims, their growth and snapshots, capacity of nodes.

Called by node, controller, scheduler, box and tools. Decisions without I/O.
"""
