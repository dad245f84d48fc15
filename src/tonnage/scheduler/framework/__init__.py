"""Extension points, and the data of the plugins: compiled pods, node table, storage objects, queue.

The plugins and the core call it. It is in memory only, updated by watch events.
"""
