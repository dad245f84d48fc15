"""Issuers of certificates: the controller's, cert-manager's, and any other signer.

Used by the source of inline volumes. They see requests, never a private key of a pod.
"""
