"""FlexVolume: serves manifests with `flexVolume` of clusters that still have them, from the node's pools.

Called by the node process and the box; `tonnage flexvolume` installs the program that the kubelet runs. It talks to the
kubelet's program through a folder in memory, to the driver as a CSI client, and reads PersistentVolumes.
"""
