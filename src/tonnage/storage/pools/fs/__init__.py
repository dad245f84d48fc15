"""File systems and block devices: formats, mkfs options, growth, identity, freezing, templates.

Called by the pools. It runs the tools of the file systems on devices that the caller owns.
"""
