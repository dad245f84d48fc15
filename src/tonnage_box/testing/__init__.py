"""Parts for tests of storage code: an API server in this process, a node with a driver and an agent, virtual time.

Used by tonnage's own tests and by other projects' tests. It may import everything; nothing imports it, and the
container image is built without it.
"""
