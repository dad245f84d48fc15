"""storage.k8s.io: classes, CSI drivers, capacity, attachments.

Called through its rows. Pure.
"""
