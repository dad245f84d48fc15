"""The objects of Kubernetes that tonnage reads, typed, with quantities, selectors, matching and patches.

Used by all layers above. Pure: no I/O, no knowledge of storage.
"""
