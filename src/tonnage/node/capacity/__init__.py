"""Storage capacity of one node: polls GetCapacity and publishes CSIStorageCapacity objects (KEP-1472).

Called by the agent. It calls the driver and writes the node's own capacity objects.
"""
