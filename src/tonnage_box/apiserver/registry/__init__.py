"""The registry: one row for each served resource, with its defaults and its strategy.

Called by discovery and the REST handlers. It names functions of validation, admission and printers; it has no I/O.
"""
