"""Reclaiming: deletes volumes of Released PVs, and the data of volumes whose pod has finished.

Called by the agent. It writes PVs and claims of its node through the API, and calls CSI drivers.
"""
