"""Logs, metrics and traces of processes.

Used by all layers. It writes to standard error, and serves metrics where a verb asks for it.
"""
