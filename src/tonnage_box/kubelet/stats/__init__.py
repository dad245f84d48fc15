"""What a kubelet tells of its node through nodes/proxy: the use of volumes, and metrics of them.

Called by the API server for one request at a time. It asks CSI drivers, and reads the node's folder.
"""
