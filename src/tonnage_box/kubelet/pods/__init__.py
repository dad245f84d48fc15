"""Pods on one node: a worker for each, its status, and eviction.

Called by the kubelet. It runs containers and volumes, and writes pod status through the API.
"""
