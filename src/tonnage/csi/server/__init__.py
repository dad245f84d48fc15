"""A gRPC server on a UNIX socket: HTTP/2 frames, limits, dispatch and call traces.

Called by the driver with its table of services. It touches only its socket.
"""
