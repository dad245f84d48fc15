"""apiextensions.k8s.io: definitions of custom resources, which are stored and have no effect.

Called through its row. Pure.
"""
