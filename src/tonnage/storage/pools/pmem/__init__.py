"""The persistent memory pool: each volume is a namespace, or a logical volume on namespaces.

Called through the Pool. It runs ndctl on the regions of this machine.
"""
