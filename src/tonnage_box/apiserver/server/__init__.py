"""The API server's process: sockets, TLS, authentication, HTTP, and the handler of each connection.

Called by the box; `inprocess` serves tests and the simulator without a socket. It owns the listening sockets and
the certificate.
"""
