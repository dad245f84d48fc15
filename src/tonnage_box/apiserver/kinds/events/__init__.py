"""events.k8s.io: core's Events in their newer form.

Called through its row. Pure.
"""
