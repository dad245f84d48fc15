"""The rules of each kind, in the words of Kubernetes (pkg/apis/*/validation): pure functions from dicts to Causes.

They run on normalised, defaulted objects (decoding.py, defaults.py), so types are right and empty means absent.
"""
