"""What kube-controller-manager does, as far as the box needs it.

Called by the box, which starts one loop for each controller. Each reads caches, writes through the API, and may be
repeated at any time.
"""
