"""The embedded kubelet: pods, their volumes and their processes on one node."""
