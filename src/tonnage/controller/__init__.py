"""`tonnage controller`: what needs one view of the cluster, under leader election.

Called by its verb and by the box. It writes claims, nodes, Events and capacity objects through the API; it never
touches a disk.
"""
