"""Talking to any Kubernetes API server."""
