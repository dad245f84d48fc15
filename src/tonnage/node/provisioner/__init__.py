"""Provisioner: a state machine for each claim, from selected-node to a bound PV.

The agent calls it. It calls CreateVolume and DeleteVolume, and writes claims and PVs through the API.
"""
