"""The simulator: the real scheduler and capacity model on a virtual clock.

Called by `tonnage simulate` and by tests. It reads a workload file and touches nothing of the machine.
"""
