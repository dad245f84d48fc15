"""`tonnage node`: the agent of one node, which provisions, publishes capacity, and reclaims for its own pools.

Called by its verb and by the box. It writes claims, PersistentVolumes, capacity and Events of its node through the
API, and calls CSI drivers.
"""
