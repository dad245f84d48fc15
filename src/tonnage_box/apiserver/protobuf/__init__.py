"""Kubernetes' protobuf encoding of the served kinds: messages, the envelope around them, and frames of a watch.

Called by content negotiation. The field numbers are a text file in each group's folder of `kinds`,
read on first use; it has no other state.
"""
