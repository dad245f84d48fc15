"""Capacity model: reservations, CSIStorageCapacity objects, tiers.

The agent, the controller, the scheduler and the verbs call it. It has no I/O: callers pass objects in and write results
out.
"""
