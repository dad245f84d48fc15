"""Node agent, `tonnage node`: provisioning, capacity, reclaiming.

The verb and the box call it. It writes claims, PVs, capacity objects and Events of its node through the API, and calls
CSI drivers.
"""
