"""The machine: mounts, loop devices, btrfs, programs. Linux only; nothing here knows CSI or Kubernetes."""
