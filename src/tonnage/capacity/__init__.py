"""The capacity model: reservations, published CSIStorageCapacity objects, tiers, and what is assumed of both.

Called by the agent, the controller, the scheduler and the tools for people. It has no I/O of its own; callers pass
objects in and write results out.
"""
