"""node.k8s.io: runtime classes, which the box stores.

Called through its row. Pure.
"""
