"""The embedded kubelet: pods, their volumes and their processes on one node.

Called by the box, once for each node. It mounts volumes, starts processes with bubblewrap, and writes pod status.
"""
