"""Volumes of pods: built-in kinds, and CSI volumes through the drivers' sockets.

Called by the pod workers. It mounts below the kubelet's folder, and never follows a symbolic link of a pod.
"""
