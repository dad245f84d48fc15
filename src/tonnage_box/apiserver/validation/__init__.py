"""What the rules of all kinds share: field errors, metadata, addresses, in the words of Kubernetes.

Called by the rules of the groups of kinds. Pure functions of normalized, defaulted objects, so types are right and
empty means absent.
"""
