"""The parts of pools in a directory: record files, contents, bind mounts, snapshots.

Called by the image, btrfs, quota and static pools. It touches only its directory, by file descriptors without following
symbolic links.
"""
