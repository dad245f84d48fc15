"""The inline driver `image`: the files of a container image as a volume, read-only or with a writable layer.

Composed by the agent and the box. It reads the image stores of the node, pulls into the first of them where a registry
is allowed, and mounts nothing.
"""
