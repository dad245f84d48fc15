"""Claims: selected-node, CreateVolume requests, data sources, PVs, and binding.

The agent, the controller, the scheduler and the box call it. It reads claims, classes and pods, and writes single
objects through a given client.
"""
