"""`tonnage doctor`: checks an installation or a box, and reports each fault with its remedy.

Called by its verb. The cluster is read once into a snapshot; each file has one group of checks over it. Only the checks
of permissions, node labels and the machine make further requests. Nothing is changed.
"""
