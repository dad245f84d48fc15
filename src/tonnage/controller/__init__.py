"""`tonnage controller`: controllers with a view of the whole cluster.

The verb and the box call it, under leader election. It writes claims, nodes, Events and capacity objects through the
API; it never touches a disk.
"""
