"""Pools of volumes on the disks of a machine, and what fills volumes: folders, images, registries.

Called by drivers and by tools. It knows neither CSI nor an API server.
"""
