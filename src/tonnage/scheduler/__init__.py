"""`tonnage scheduler`: picks a node for a pod, reserves its volumes.

All volumes of a pod, or none. The verb, the box and the simulator call it. It reads caches, and writes pods and claims
through the API.
"""
