"""Inline drivers: volumes with content that is made for one pod, each kind of content behind one function.

Called by the driver's gRPC services and composed by the agent and the box. It mounts below the driver's own folder and
at the targets that it is given. What needs an API server or a registry is passed in.
"""
