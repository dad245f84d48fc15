"""authentication.k8s.io and authorization.k8s.io: questions that are answered and never stored.

Called through its rows; `access` answers. Pure.
"""
