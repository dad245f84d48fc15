"""Schemas of the served kinds: decoding, pruning and normalization of objects.

Called by request decoding, discovery and validation. The fields of every served kind are text files
in its group's folder of `kinds`, read once, on first use; it has no other state.
"""
