"""Issuers of certificates: sign requests of agents and of kubelets, and publish the issuers' roots.

Called by the controller. They read the issuers' mounted Secrets, and no other process does.
"""
