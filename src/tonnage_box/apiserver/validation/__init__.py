"""The rules of each kind, in the words of Kubernetes (pkg/apis/*/validation).

Called by the write path. Pure functions from normalized, defaulted objects to lists of field errors, so types are
right and empty means absent.
"""
