"""The gRPC services of the driver: Identity, Controller, Node, snapshots, and our inventory.

Called by the transport for each request. They validate, call a pool, and convert the result.
"""
