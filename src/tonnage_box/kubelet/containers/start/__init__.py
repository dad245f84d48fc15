"""The program that starts a container's command: it drops to the container's user first.

Called by the runtime of bubblewrap. It needs no file of the container, and reads and writes none itself.
"""
