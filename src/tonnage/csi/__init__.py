"""The CSI socket: the driver's services, and a client for any driver."""
