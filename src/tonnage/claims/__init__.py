"""From a claim to a CreateVolume request and a PersistentVolume, and the steps that bind them.

Called by the agent, the controller, the scheduler and the box. It reads claims, classes and pods, and writes single
objects through a client that it is given.
"""
