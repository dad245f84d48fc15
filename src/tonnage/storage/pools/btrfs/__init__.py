"""The btrfs pool: volumes are subvolumes with quotas, snapshots are shared blocks.

Called through the Pool. It works in one directory of a btrfs, or in an image that it makes.
"""
