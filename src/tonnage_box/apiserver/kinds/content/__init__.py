"""tonnage.dev: contents that volumes begin with.

Called through its row. Pure.
"""
