"""The machine: mounts, loop devices, device mapper, btrfs, quotas, LVM's and ndctl's commands. Linux only.

Called by pools, the CSI driver, the kubelet and the agent. Blocking; it makes system calls and runs programs, and
knows neither CSI nor Kubernetes.
"""
