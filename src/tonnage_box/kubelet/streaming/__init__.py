"""Streaming: exec and attach for the containers of one node, and the helper that joins a running container.

Called by the API server for its clients. It starts processes in a container's namespaces, and touches nothing outside.
"""
