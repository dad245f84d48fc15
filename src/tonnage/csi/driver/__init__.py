"""The CSI driver: pools behind the Identity, Controller and Node services, and its kubelet registration.

Called by the agent, the box and `tonnage driver`. It calls pools and mounts; it knows nothing of the API server.
"""
