"""certificates.k8s.io, and cert-manager's requests: requests for certificates, and roots.

Called through its rows; volumes use its rules of signers. Other programs act on the objects. Pure.
"""
