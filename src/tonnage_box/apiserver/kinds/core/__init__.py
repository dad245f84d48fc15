"""core/v1: namespaces, nodes, pods, claims, volumes, Events, configuration, quota, services.

Called through its rows; other groups use its rules of pods. Its services allocate addresses from what is stored.
"""
