"""The provisioner: one claim at a time from selected-node to a bound PersistentVolume.

Called by the agent. It calls CreateVolume and DeleteVolume, and writes claims and PersistentVolumes through the
API.
"""
