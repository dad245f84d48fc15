"""Admission: what changes or rejects a write between decoding and storage.

Called by the write path of the REST handlers. It reads stored objects and never writes them, except for quota
status.
"""
