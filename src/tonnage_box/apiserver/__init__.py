"""The embedded API server: what kubectl and client-go expect of one, on SQLite.

Called by the box, and by tests and the simulator as an API server in process. It may touch its state file and its
sockets, nothing else of the machine.
"""
