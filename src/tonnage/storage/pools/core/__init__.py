"""The concrete Pool, the Backend that each kind implements, requests, device mounts, and the erasing of blocks.

Called by the CSI driver and the back ends. It runs blocking work in threads of the pool.
"""
