"""Kubernetes' protobuf encoding of the served kinds: messages, the envelope around them, and frames of a watch.

Called by content negotiation. The table of field numbers is a text file, read on first use; it has no other state.
"""
