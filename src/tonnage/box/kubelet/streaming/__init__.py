"""Streaming: exec and attach. The kubelet calls it for the API server's clients.

A process that joins a container is started by a short-lived helper. It may touch the container's namespaces only.
"""
