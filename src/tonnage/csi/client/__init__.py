"""A client for any CSI driver, over a socket or in process.

Called by the agent and the box's kubelet. It opens the driver's socket, and nothing else.
"""
