"""discovery.k8s.io and networking.k8s.io: endpoint slices, routes and policies, which the box stores.

Called through its rows. Pure.
"""
