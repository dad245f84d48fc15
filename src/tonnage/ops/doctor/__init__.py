"""`tonnage doctor`: checks an installation or a box, and says what is wrong with it and what to do.

Called by its verb. One snapshot of the cluster is read once; each file holds one group of checks over it. Only the
checks of permissions, node labels and the machine ask further, and nothing is changed.
"""
