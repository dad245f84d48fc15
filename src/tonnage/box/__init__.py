"""A cluster in one process: API server, controllers, kubelets and the node agents on one machine.

Called by `tonnage up`, `down` and `replica`. It may use everything below it; nothing below imports it, and the
container image is built without it.
"""
