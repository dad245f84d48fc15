"""Composition of inline drivers: which kinds there are, their sources, sockets and CSIDriver objects.

Used by the node process, the box and the manifests. A kind of content is one row of the table of sources.
"""
