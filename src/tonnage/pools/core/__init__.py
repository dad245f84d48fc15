"""The parts of pools on real disks: the common pool, its back end, requests, and the erasing of blocks.

Called by the pools of each technology. It runs blocking work in threads of the pool.
"""
