"""Data of the plugins: node table, topology pair counts, capacity, queue.

The plugins and the core call it. It is in memory only, updated by watch events.
"""
