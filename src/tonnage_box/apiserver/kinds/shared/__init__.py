"""What several groups of kinds use: parts of rows, defaults, strategies, and the fields of metadata.

Called by the groups. Pure.
"""
