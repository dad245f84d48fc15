"""Claims: CreateVolume requests, PVs, and the steps of binding.

The agent, the controller, the scheduler and the box call it. It reads claims, classes and pods, and writes single
objects through a given client.
"""
