"""The CSI driver over real pools, beside csi-driver-host-path and bare system calls."""
