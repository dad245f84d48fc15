"""Small static programs around a container: one starts its command as its user, one keeps its output.

Called by the runtime of bubblewrap. They need no file of the container, and read and write none.
"""
