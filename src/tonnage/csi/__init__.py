"""CSI on both sides: the driver's services with their own gRPC transport, and a client for any driver.

Called by the agent, the box's kubelet and tests. It alone speaks gRPC.
"""
