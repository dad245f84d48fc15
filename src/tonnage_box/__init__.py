"""A cluster in one process: API server, controllers, kubelets and the node agents on one machine.

The distribution tonnage-box, called by `tonnage up` and its relatives. It may use all of tonnage, which imports nothing
of it; the container image is built without it.
"""
