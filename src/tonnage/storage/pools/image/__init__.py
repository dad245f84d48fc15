"""The image pool: each volume is a file behind a loop device, thick or sparse.

Called through the Pool. It works in one directory, and on loop devices of files in it.
"""
