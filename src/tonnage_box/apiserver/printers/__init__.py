"""Printers: the columns of each kind for `kubectl get`, as in Kubernetes' pkg/printers/internalversion.

Called by the registry, which names the columns of each resource. Pure functions of objects.
"""
