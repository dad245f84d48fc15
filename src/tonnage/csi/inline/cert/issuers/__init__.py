"""Issuers of certificates: the controller's, cert-manager's, any other signer, and the box itself.

Used by the source of inline volumes. They see requests, never a private key of a pod.
"""
