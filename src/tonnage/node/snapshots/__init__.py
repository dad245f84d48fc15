"""Snapshots of one node: makes and deletes what contents of snapshots and of groups ask for.

Called by the agent. One loop for single snapshots, one for groups; they share what a driver's rejection leads to.
"""
