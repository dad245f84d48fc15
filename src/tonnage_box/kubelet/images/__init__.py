"""Images on one node: which image a container or volume gets, its root, and its users.

Called by the container runtime and by the volumes. It mounts below the kubelet's folder, and resolves every path of an
image inside that image.
"""
