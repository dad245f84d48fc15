"""Mounts of a container: its volumes, devices and files, put into the root that bwrap has made.

Called by the runtime of bubblewrap, and for mount points by images. It may make folders and files inside the root, and
nothing on this machine.
"""
