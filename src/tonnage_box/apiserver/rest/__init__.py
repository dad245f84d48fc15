"""The REST verbs: create, read, update, patch, delete, watch, and the subresources.

Called by the server for each request. It reads and writes storage through admission and validation.
"""
