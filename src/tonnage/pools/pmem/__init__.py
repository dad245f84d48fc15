"""The persistent memory pool: each volume is a namespace, or a logical volume on namespaces.

Called through the pool contract. It runs ndctl on the regions of this machine.
"""
