"""`tonnage scheduler`: picks a node for a pod and reserves its volumes there, all or none.

Called by its verb, the box and the simulator. It reads caches, and writes pods and claims through the API.
"""
