"""Capacity of one node: GetCapacity poller, CSIStorageCapacity objects.

The agent calls it. It calls the driver and writes the node's own capacity objects (KEP-1472).
"""
