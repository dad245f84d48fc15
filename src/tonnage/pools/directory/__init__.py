"""Pools that live in a directory: records as files, contents beside them, bind mounts, snapshots.

Called by the image, btrfs, quota and static pools. It touches only its directory, by file descriptors without
following symbolic links.
"""
