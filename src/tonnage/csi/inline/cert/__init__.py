"""Inline driver `cert`: a key and a certificate made for one pod (the attributes of cert-manager/csi-driver).

Used by the agent, which asks, and by the controller, which signs. Private keys stay on the node that made them.
"""
