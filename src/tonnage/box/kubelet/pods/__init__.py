"""Pods on one node: a worker for each, its status, its record on disk, and eviction.

Called by the box's node. It runs containers and volumes, and writes pod status through the API.
"""
