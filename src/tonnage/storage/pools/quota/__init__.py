"""The quota pool: each volume is a directory with a project quota of xfs or ext4.

Called through the Pool, over the backend of directories. It may touch only its pool's directory, and project quotas
with its own numbers.
"""
