"""What processes report about themselves: logs, metrics and traces.

Used by all layers. It writes to standard error, and serves metrics where a verb asks for it.
"""
