"""coordination.k8s.io: leases.

Called through its row. Pure.
"""
