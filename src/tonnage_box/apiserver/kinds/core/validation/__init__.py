"""The rules of core/v1, in the words of Kubernetes (pkg/apis/core/validation).

Called by the write path. Pure functions from normalized, defaulted objects to lists of field errors.
"""
