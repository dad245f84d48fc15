"""The back end of pools in a directory, in parts: record files, contents, bind mounts, snapshots, erasing.

Called by the image, btrfs, quota and static pools. It touches only its directory, by file descriptors without following
symbolic links.
"""
