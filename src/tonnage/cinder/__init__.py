"""CSI driver for the storage that OpenStack Cinder has drivers for, in a process of its own. Experimental.

Called by `tonnage cinder`. It speaks CSI and knows nothing of Cinder: a child process, which may have an interpreter of
its own, imports Cinder's library and os-brick. It calls mounts and file systems, and no API server.
"""
