"""rbac.authorization.k8s.io: roles and their bindings.

Called through its rows. Pure; what a user may grant is checked in `access`.
"""
