"""Content: what new volumes are filled with, and how it is fetched, checked and unpacked.

Called by the CSI driver, which fills volumes, by the agent, which reads the objects, and by the box's API server, which
checks them. It may connect to the hosts that the node allows, read the node's image stores and allowed folders, and
write below one open directory.
"""
