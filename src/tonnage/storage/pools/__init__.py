"""Storage pools: where volumes live, by technology. Knows neither CSI nor Kubernetes.

Called by the CSI driver and by the configuration of a node. It makes, mounts and erases volumes on disks of this
machine.
"""
