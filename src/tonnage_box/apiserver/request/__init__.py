"""One request: its route, options, content type, and the errors that it may end with.

Called by the server and the REST handlers. Pure: it parses and encodes, and touches neither storage nor sockets.
"""
