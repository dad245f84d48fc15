"""Data that plugins read: nodes in columns, topology counts, pods on nodes, capacity, the queue.

Called by the plugins and the core. In memory only, updated from watch events.
"""
