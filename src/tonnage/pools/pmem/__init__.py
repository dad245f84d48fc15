"""The persistent memory pool: volumes are namespaces, or logical volumes on them.

Called through the pool contract. It runs ndctl on the regions of this machine.
"""
