"""Schemas of the served kinds: decoding, pruning and normalization of objects.

Called by request decoding, discovery and validation. It reads the text of the schemas and has no state.
"""
