"""The Kubernetes API as its clients see it: typed objects, requests, watches, informers.

Called by all programs that speak to an API server. `api` is pure; `client` owns connections.
"""
